#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/error.h>
#include <hora/torch/accuracy.h>

#include <algorithm>
#include <sstream>

namespace hora {
namespace {

void check(const at::Tensor& output, const at::Tensor& target,
           const std::vector<std::int64_t>& ks) {
  const bool fit = output.dim() == 2 && output.size(1) > 0 && output.is_floating_point() &&
                   target.dim() == 1 && target.scalar_type() == at::kLong &&
                   target.size(0) == output.size(0);
  const bool ranks = std::all_of(ks.begin(), ks.end(), [](std::int64_t k) { return k >= 1; });
  if (fit && ranks) return;
  std::ostringstream text;
  text << "topk_correct: output is " << output.scalar_type() << ' ' << output.sizes() << ", target "
       << target.scalar_type() << ' ' << target.sizes() << ", ks " << at::IntArrayRef(ks)
       << "; expected floating-point [samples, classes], Long [samples], and ks >= 1";
  throw Error(ErrorCode::invalid_argument, text.str());
}

}  // namespace

torch::Tensor topk_correct(const torch::Tensor& output, const torch::Tensor& target,
                           const std::vector<std::int64_t>& ks) {
  check(output, target, ks);
  const at::NoGradGuard no_grad;
  if (ks.empty()) return at::empty({0}, target.options());
  const std::int64_t classes = output.size(1);
  const std::int64_t most = std::min(classes, *std::max_element(ks.begin(), ks.end()));
  // LibTorch's CPU has no topk() of float16; widened the order is the same.
  const at::Tensor scores = output.scalar_type() == at::kHalf ? output.to(at::kFloat) : output;
  const at::Tensor best = std::get<1>(at::topk(scores, most, /*dim=*/1));  // largest first
  const at::Tensor right = best.eq(target.unsqueeze(1)).sum(/*dim=*/0);    // by place, [most]
  std::vector<at::Tensor> counts;
  for (const std::int64_t k : ks) counts.push_back(right.narrow(0, 0, std::min(k, classes)).sum());
  return at::stack(counts);
}

}  // namespace hora
