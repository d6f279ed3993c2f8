/* All of the driver but what driver.cpp does itself. */
#define cuLaunchKernelEx fake_cuLaunchKernelEx
#define cuPointerGetAttribute fake_cuPointerGetAttribute
#include "../faults/fake_cuda.c"
