/// Averages of what is measured in training, of one rank or of all, and counts of right samples.
///
///     hora::AverageMeter losses("Loss", {.precision = 4, .scientific = true});
///     hora::AverageMeter top1("Acc@1", {.width = 6, .precision = 2});
///     losses.update(loss.item<double>(), count);
///     const torch::Tensor correct = hora::topk_correct(output, target, {1, 5}).cpu();
///     top1.update(100.0 * correct[0].item<double>() / count, count);
///     std::cout << losses.text() << '\t' << top1.text();   // Loss 1.2345e+00 (1.3456e+00)  ...
///     const auto all = hora::meters_of_all_ranks(world, {losses, top1});   // one allreduce
///     std::cout << all[1].average();
#pragma once

#include <hora/torch/collectives.h>

#include <string>

namespace HORA_EXPORT hora {

/// Format of numbers, as printf's "%<width>.<precision>f", or ...e where scientific.
struct MeterFormat {
  int width = 0;      ///< at least so many characters, from 0 to 64
  int precision = 3;  ///< digits behind the point, from 0 to 17
  bool scientific = false;
};

/// The last value and the average of all, weighed by counts, as PyTorch's ImageNet example has it.
/// Constructor: Error(invalid_argument) for a format out of range. Thread rule: one thread.
class AverageMeter {
 public:
  explicit AverageMeter(std::string name, const MeterFormat& format = {});

  /// `value`: average over `count` samples; Error(invalid_argument) below 0.
  void update(double value, std::int64_t count = 1);
  void reset() noexcept;

  const std::string& name() const noexcept { return name_; }
  double value() const noexcept { return value_; }  ///< the last one; 0 before
  double sum() const noexcept { return sum_; }      ///< of value * count
  std::int64_t count() const noexcept { return count_; }
  double average() const noexcept;  ///< sum / count; 0 where nothing was counted

  /// "<name> <value> (<average>)": "Loss 1.2345e+00 (1.3456e+00)".
  std::string text() const;
  /// "<name> <average>": "Acc@1 76.13".
  std::string average_text() const;

 private:
  friend std::vector<AverageMeter> meters_of_all_ranks(const Context& context,
                                                       const std::vector<AverageMeter>& meters,
                                                       const std::string& name, ProcessSet set);
  std::string number(double value) const;

  std::string name_;
  MeterFormat format_;
  double value_ = 0.0;
  double sum_ = 0.0;
  std::int64_t count_ = 0;
};

/// Returns the meters with sums (float64) and counts (exact up to 2^53) of all ranks' samples, the
/// same bits on every rank, by one allreduce; `value` stays this rank's, and so do the arguments.
/// Collective: as many meters on every rank, in the same order. Errors: as allreduce's.
std::vector<AverageMeter> meters_of_all_ranks(const Context& context,
                                              const std::vector<AverageMeter>& meters,
                                              const std::string& name = "hora.meters",
                                              ProcessSet set = kWorld);

/// Counts, for each k of `ks`, the samples whose class is among the k largest outputs: [ks.size()]
/// of int64 on the outputs' device, for which the host does not wait. `output`: [samples, classes],
/// floating-point; `target`: [samples], int64. A k above the number of classes counts as that.
/// Throws Error(invalid_argument) for other shapes or types, and a k below 1. Thread rule: any.
torch::Tensor topk_correct(const torch::Tensor& output, const torch::Tensor& target,
                           const std::vector<std::int64_t>& ks = {1, 5});

}  // namespace hora
