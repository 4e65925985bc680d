#define HORA_KERNEL_TABLE kAvx2Kernels
#define HORA_INSTRUCTION_SET "avx2"
#include "ops/local/kernel_variant.h"
