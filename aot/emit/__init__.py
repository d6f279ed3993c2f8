"""From artifacts to what csrc compiles: launchers, tables, abi.h, the manifest; and how they are checked."""
