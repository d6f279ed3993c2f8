"""Makes `import triton` fail, as in the deployments that the wheel is for."""

import sys


class Blocker:
    """A finder that answers for triton and its submodules: they do not exist."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"{name} is blocked: gg_runtime must work without it", name=name)
        return None


def install() -> Blocker:
    blocker = Blocker()
    sys.meta_path.insert(0, blocker)
    return blocker
