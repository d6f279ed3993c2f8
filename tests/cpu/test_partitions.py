"""What aot/build/partitions.py makes of PTX: by hand, and in what `make build` made."""

import re
import subprocess

import pytest

from aot.build.partitions import end_with_partition
from aot.build.toolchain import tool
from aot.spec.kernels import KERNELS
from aot.spec.variants import variants

pytestmark = pytest.mark.compiler

START = """\
	mov.u32 	%r1, %tid.x;
	@!%p1 bra 	$L__BB0_1;
	bra.uni 	$L__BB0_9;
"""
PREHEADER = """\
$L__BB0_1:                              // %.preheader
	mov.u32 	%r2, %ctaid.x;
"""
WAITS = """\
	setmaxnreg.dec.sync.aligned.u32 	120;
	barrier.sync 	1;
"""
LOOP = f"""\
$L__BB0_2:                              // =>This Loop Header: Depth=1
                                        //     Child Loop BB0_7 Depth 2
{WAITS}	add.s32 	%r3, %r4, %r5;
	ld.shared.b8 	%rs1, [%r3+215852];
	setp.eq.b16 	%p2, %rs1, 0;
	@%p2 bra 	$L__BB0_20;
	bra.uni 	$L__BB0_9;
"""
FIRST = """\
$L__BB0_20:                             //   in Loop: Header=BB0_2 Depth=1
	setmaxnreg.inc.sync.aligned.u32 	216;
	barrier.sync 	1;
"""
SECOND = FIRST.replace("BB0_20", "BB0_21").replace("216", "72")
BACK = "	bra.uni 	$L__BB0_2;\n"
END = """\
$L__BB0_9:                              // %common.ret
	ret;
"""
ENDS = WAITS + "	ret;\n"


def test_ways_back_become_ends():
    ptx = START + PREHEADER + LOOP + FIRST + BACK + SECOND + BACK + END
    assert end_with_partition(ptx) == START + PREHEADER + LOOP + FIRST + ENDS + SECOND + ENDS + END


def test_a_partition_in_front_of_the_loop_ends_too():
    ptx = START + PREHEADER + BACK + SECOND + LOOP + FIRST + BACK + END
    assert end_with_partition(ptx) == START + PREHEADER + BACK + SECOND + ENDS + LOOP + FIRST + ENDS + END


@pytest.mark.parametrize(
    "ptx",
    [
        START + PREHEADER + FIRST + END,
        START + PREHEADER + LOOP + FIRST + BACK + LOOP + END,
        START + PREHEADER + LOOP + FIRST + "	@%p3 bra 	$L__BB0_2;\n" + END,
        START + BACK + PREHEADER + BACK + SECOND + LOOP + END,
    ],
    ids=["no loop", "two loops", "a way back of some", "two entries"],
)
def test_what_is_not_understood_is_refused(ptx):
    with pytest.raises(ValueError, match="loop of worker warps"):
        end_with_partition(ptx)


def test_kernels_of_the_wheel_end_with_each_partition_and_spill_nothing(built, generated):
    found = variants([90], [name for name, kernel in KERNELS.items() if kernel.ends_partitions])
    names = [one.name for one in found if one.config.consumers > 1 and KERNELS[one.kernel].ends_partitions]
    assert names and built.keys() >= set(names)
    for name in names:
        image = generated / f"images/{name}.cubin"
        code = subprocess.run([tool("nvdisasm"), "-c", image], check=True, capture_output=True, text=True).stdout
        assert len(re.findall(r"\bEXIT\b", code)) >= 4, f"{name}: two partitions and what starts them"
        assert built[name]["spill_bytes"] == 0
