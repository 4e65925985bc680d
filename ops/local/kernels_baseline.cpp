#define HORA_KERNEL_TABLE kBaselineKernels
#define HORA_INSTRUCTION_SET "baseline"
#include "ops/local/kernel_variant.h"
