#include "frameworks/torch/collectives/collective_gradients.h"

#include <numeric>
#include <string>

#include "frameworks/torch/collectives/differentiable.h"
#include "frameworks/torch/tensor_view.h"

namespace hora {
namespace {

void check_linear(const std::string& name, ReduceOp op) {
  if (op == ReduceOp::sum || op == ReduceOp::average) return;
  refuse_tensor(name, "a reduction by " + std::string(name_of(op)) +
                          " has no gradient; expected sum or average, or a call under "
                          "torch::NoGradGuard");
}

}  // namespace

void check_has_gradient(const AllreduceOptions& options) {
  check_linear(options.name, options.op);
}
void check_has_gradient(const ReduceScatterOptions& options) {
  check_linear(options.name, options.op);
}

AllreduceOptions sum_for(const BroadcastOptions& options) {
  return {.name = backward_options(options).name,
          .op = ReduceOp::sum,
          .process_set = options.process_set};
}

AllreduceOptions average_for(const AllgatherOptions& options) {
  return {.name = backward_options(options).name,
          .op = ReduceOp::average,
          .process_set = options.process_set};
}

AllgatherOptions gather_for(const ReduceScatterOptions& options) {
  return {.name = backward_options(options).name, .process_set = options.process_set};
}

torch::Tensor at_root(const Context& context, const torch::Tensor& gradient,
                      const BroadcastOptions& options) {
  return context.rank() == options.root ? gradient : torch::zeros_like(gradient);
}

MyRows my_rows(const Context& context, const AllgatherOptions& options,
               const std::vector<std::int64_t>& rows, const torch::Tensor& mine) {
  const auto me = static_cast<std::size_t>(rank_in(context, options.process_set));
  return {std::accumulate(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(me),
                          std::int64_t{0}),
          rows[me], mine.sizes().vec()};
}

torch::Tensor rows_of(const torch::Tensor& gathered, const MyRows& mine) {
  // A copy: a view would keep all ranks' rows.
  return gathered.narrow(0, mine.first, mine.count).clone().view(mine.shape);
}

double gather_scale(const Context& context, const ReduceScatterOptions& options) {
  const int ranks = options.op == ReduceOp::sum ? size_of(context, options.process_set) : 1;
  return ranks * options.prescale * options.postscale;
}

}  // namespace hora
