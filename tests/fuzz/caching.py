"""The caching allocator of torch, without memory: freed blocks are handed out again on the stream that they are of."""

import itertools

ROUND = 512  # bytes


class Owner:
    """One block, which goes back when nothing refers to it."""

    def __init__(self, allocator: "Caching", home: tuple, address: int, size: int):
        self.allocator, self.home, self.address, self.size = allocator, home, address, size

    def __del__(self):
        self.allocator.free(self)


class Caching:
    """Blocks of each device, stream and pool; a capture has a pool of its own. `note` is told of each event."""

    def __init__(self, note, current_stream):
        self.note, self.current_stream = note, current_stream
        self.pools: dict[int, int] = {}  # stream that is captured -> number of the graph
        self.idle: dict[tuple, list[tuple[int, int]]] = {}  # (device, stream, pool) -> (bytes, address)
        self.made = itertools.count(1)

    def __call__(self, device: int, size: int) -> tuple[int, Owner]:
        stream = self.current_stream(device)
        home = device, stream, self.pools.get(stream, 0)
        size = max(-(-size // ROUND), 1) * ROUND
        fitting = [block for block in self.idle.get(home, ()) if size <= block[0] <= 2 * size]
        if fitting:
            block = min(fitting)
            self.idle[home].remove(block)
            size, address = block
        else:
            address = (device << 44) + (next(self.made) << 26) + (1 << 43)
        self.tell("fake_allocate", home, address, size)
        return address, Owner(self, home, address, size)

    def free(self, owner: Owner) -> None:
        self.tell("fake_free", owner.home, owner.address, owner.size)
        self.idle.setdefault(owner.home, []).append((owner.size, owner.address))

    def tell(self, call: str, home: tuple, address: int, size: int) -> None:
        device, stream, pool = home
        self.note(call=call, address=address, bytes=size, device=device, stream=stream, pool=pool)
