// Takes the place of the CUDA driver's library in tests: it checks and counts, and pins nothing. It
// exports memory that others provide.
#pragma once

#include <cstddef>

#include "pretend_accelerator/control.h"

extern "C" {

// What cuInit() and cuMemHostRegister() return from now on; 0 is success.
void PretendCudaFail(int init, int host_register);
// The bytes that are registered now.
size_t PretendCudaRegisteredBytes();
// Provides the memory of GPUs; as PretendAcceleratorFind(). Null: there is none.
void PretendCudaServe(int (*find)(const void* address, PretendAllocation* allocation, int* file));
// What the GPU supports from now on: DMA-BUF (1 or 0), and the order of cards' writes (100: they
// need no flush; 0: they do).
void PretendCudaDirect(int dma_buf, int writes_ordering);
// How often writes of cards were flushed.
int PretendCudaFlushes();
// How often a function was called in a wrong way, such as without a context.
int PretendCudaMistakes();
}
