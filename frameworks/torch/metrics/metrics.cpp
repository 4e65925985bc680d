#include <hora/collectives.h>
#include <hora/error.h>
#include <hora/torch/metrics.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "frameworks/torch/tensor_view.h"

namespace hora {
using namespace internal;

torch::Tensor topk_correct(const torch::Tensor& output, const torch::Tensor& target,
                           const std::vector<std::int64_t>& ks) {
  const bool fit = output.dim() == 2 && output.size(1) > 0 && output.is_floating_point() &&
                   target.dim() == 1 && target.scalar_type() == at::kLong &&
                   target.size(0) == output.size(0);
  const bool ranks = std::all_of(ks.begin(), ks.end(), [](std::int64_t k) { return k >= 1; });
  if (!fit || !ranks) {
    refuse_argument("topk_correct: output is ", output.scalar_type(), ' ', output.sizes(),
                    ", target ", target.scalar_type(), ' ', target.sizes(), ", ks ",
                    at::IntArrayRef(ks),
                    "; expected floating-point [samples, classes], Long [samples], and ks >= 1");
  }
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

AverageMeter::AverageMeter(std::string name, const MeterFormat& format)
    : name_(std::move(name)), format_(format) {
  if (format.width < 0 || format.width > 64 || format.precision < 0 || format.precision > 17) {
    refuse_argument("AverageMeter \"", name_, "\": width ", format.width, " and precision ",
                    format.precision, "; expected 0 to 64 and 0 to 17");
  }
}

void AverageMeter::update(double value, std::int64_t count) {
  if (count < 0) {
    refuse_argument("AverageMeter \"", name_, "\": count ", count, "; expected 0 or more");
  }
  value_ = value;
  sum_ += value * static_cast<double>(count);
  count_ += count;
}

void AverageMeter::reset() noexcept {
  value_ = sum_ = 0.0;
  count_ = 0;
}

double AverageMeter::average() const noexcept {
  return count_ == 0 ? 0.0 : sum_ / static_cast<double>(count_);
}

std::string AverageMeter::number(double value) const {
  // The largest double has 309 digits before the point.
  std::array<char, 400> text{};
  const int length = std::snprintf(text.data(), text.size(), format_.scientific ? "%*.*e" : "%*.*f",
                                   format_.width, format_.precision, value);
  return std::string(text.data(), static_cast<std::size_t>(length));
}

std::string AverageMeter::text() const {
  return name_ + " " + number(value_) + " (" + number(average()) + ")";
}

std::string AverageMeter::average_text() const {
  return name_ + " " + number(average());
}

std::vector<AverageMeter> meters_of_all_ranks(const Context& context,
                                              const std::vector<AverageMeter>& meters,
                                              const std::string& name, ProcessSet set) {
  std::vector<double> sums;
  for (const AverageMeter& meter : meters) {
    sums.push_back(meter.sum_);
    sums.push_back(static_cast<double>(meter.count_));
  }
  allreduce(context, view(sums), {.name = name, .op = ReduceOp::sum, .process_set = set});
  std::vector<AverageMeter> all = meters;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].sum_ = sums[2 * i];
    all[i].count_ = static_cast<std::int64_t>(sums[2 * i + 1]);
  }
  return all;
}

}  // namespace hora
