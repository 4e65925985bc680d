#define HORA_KERNEL_TABLE kAvx512Kernels
#define HORA_INSTRUCTION_SET "avx512"
#include "ops/local/kernel_variant.h"
