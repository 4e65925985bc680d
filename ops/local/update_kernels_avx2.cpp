#define HORA_UPDATE_TABLE kAvx2Updates
#define HORA_INSTRUCTION_SET "avx2"
#include "ops/local/update_kernels.h"
