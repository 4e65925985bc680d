#include "bench/gpu/c10d_ddp.h"

namespace bench {

std::unique_ptr<DdpReducer> make_ddp_reducer(const torch::nn::Module& /*module*/) {
  return nullptr;
}

}  // namespace bench
