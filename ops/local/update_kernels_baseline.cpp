#define HORA_UPDATE_TABLE kBaselineUpdates
#define HORA_INSTRUCTION_SET "baseline"
#include "ops/local/update_kernels.h"
