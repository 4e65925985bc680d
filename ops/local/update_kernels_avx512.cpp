#define HORA_UPDATE_TABLE kAvx512Updates
#define HORA_INSTRUCTION_SET "avx512"
#include "ops/local/update_kernels.h"
