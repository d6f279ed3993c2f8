"""What aot/build/clusters.py makes of PTX: by hand, and in what `make build` made."""

import re
import subprocess

import pytest

from aot.build.clusters import in_clusters
from aot.build.toolchain import tool
from aot.spec.variants import variants

pytestmark = pytest.mark.compiler

HEAD = """\
.visible .entry kernel(
	.param .u64 kernel_param_0
)
.reqntid 384
{
"""
BODY = """\
	and.b32 	%r155, %r150, 16777200;
	barrier.sync 	1;
	and.b32  %r7, %r8, 16777208;
	bar.sync 	0, 128;
	and.b32 	%r2327, %r1, 16;
	barrier.sync 	1;
	ret;
}
"""
MEETS = """\
	barrier.sync 	1;
	fence.mbarrier_init.release.cluster;
	barrier.cluster.arrive.aligned;
	barrier.cluster.wait.aligned;
"""


def test_warps_of_a_cluster_meet_and_addresses_keep_their_cta():
    expected = HEAD.replace("{", ".explicitcluster\n.reqnctapercluster 2, 1, 1\n{")
    expected += BODY.replace("	barrier.sync 	1;\n", MEETS)
    expected = expected.replace("and.b32 	%r155, %r150, 16777200", "mov.b32 	%r155, %r150")
    assert in_clusters(HEAD + BODY, 2) == expected.replace("and.b32  %r7, %r8, 16777208", "mov.b32  %r7, %r8")


@pytest.mark.parametrize(
    ("ptx", "why"),
    [
        (HEAD + "	ret;\n}\n", "1 with 0 barriers"),
        (BODY, "0 with 2 barriers"),
        (HEAD + BODY + HEAD + BODY, "2 with 4 barriers"),
        (HEAD + BODY.replace("16777208", "16777212"), "taken apart in an unexpected way"),
    ],
    ids=["warps that do not part", "no kernel", "two kernels", "another mask"],
)
def test_what_is_not_understood_is_refused(ptx, why):
    with pytest.raises(ValueError, match=why):
        in_clusters(ptx, 2)


def test_kernels_of_the_wheel_load_for_each_other(built, generated):
    """Either operand is multicast, and each warp meets those of the other CTA before it ends."""
    names = [one.name for one in variants([90]) if one.config.cluster > 1]
    assert names and built.keys() >= set(names)
    for name in names:
        image = generated / f"images/{name}.cubin"
        code = subprocess.run([tool("nvdisasm"), "-c", image], check=True, capture_output=True, text=True).stdout
        assert set(re.findall(r"UTMALDG\.(\dD)\.MULTICAST", code)) == {"3D", "4D"}, name
        assert len(re.findall("UCGABAR_WAIT", code)) >= 4, name
        assert built[name]["spill_bytes"] == 0
