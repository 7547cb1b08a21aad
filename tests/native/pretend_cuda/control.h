// Takes the place of the CUDA driver's library in tests: it checks and counts, and pins nothing.
#pragma once

#include <cstddef>

extern "C" {

// What cuInit() and cuMemHostRegister() return from now on; 0 is success.
void PretendCudaFail(int init, int host_register);
// The bytes that are registered now.
size_t PretendCudaRegisteredBytes();
// How often a function was called in a wrong way, such as without a context.
int PretendCudaMistakes();
}
