#define HORA_KERNEL_TABLE kAvx512Bf16Kernels
#define HORA_INSTRUCTION_SET "avx512_bf16"
#include "ops/local/kernel_variant.h"
