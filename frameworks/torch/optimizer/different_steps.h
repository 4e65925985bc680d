/// Exchanges which steps ranks are in, where they are in different ones.
#pragma once

#include <hora/hora.h>

#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/step_calls.h"
#include "frameworks/torch/peers.h"

namespace hora {

/// What a rank sends; one that has joined sends nothing, and is all zeros.
struct ToldSteps {
  std::int64_t reported = 0;
  std::int64_t rank = 0;
  std::int64_t steps = 0;
  std::int64_t zero_grads = 0;
};

/// Once. Thread rule: one thread at a time.
class StepsExchange {
 public:
  /// `name`: the optimizer's.
  StepsExchange(const Peers& peers, std::string name);

  /// Collective, does not wait.
  void tell(const StepCalls& calls);
  /// After tell(): waits. Gives the same Error(mismatch) on every rank, which names all ranks and
  /// their steps.
  Error error();

 private:
  const Peers peers_;
  const std::string name_;
  std::vector<ToldSteps> all_;  ///< by place
  Handle handle_;
};

}  // namespace hora
