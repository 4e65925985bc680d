/// Several calls into NCCL as one.
#pragma once

#include "ops/nccl/check.h"

namespace hora {

/// Everything between construction and end() is one call of NCCL. Without end(), after an
/// exception, the group stays open: the communicator cannot be used any more then.
class NcclCallGroup {
 public:
  explicit NcclCallGroup(const NcclFunctions& nccl) : nccl_(nccl) {
    nccl_check(nccl_, nccl_.group_start(), "ncclGroupStart");
  }
  void end() { nccl_check(nccl_, nccl_.group_end(), "ncclGroupEnd"); }

 private:
  const NcclFunctions& nccl_;
};

}  // namespace hora
