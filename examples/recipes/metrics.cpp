/// Averages of loss and accuracy over all ranks' samples, by one allreduce.
#include <hora/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iostream>

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  torch::NoGradGuard no_grad;
  torch::manual_seed(1);  // the same data and model on every rank
  const std::int64_t samples = 101;
  const torch::Tensor inputs = torch::randn({samples, 8});
  const torch::Tensor labels = torch::randint(0, 3, {samples}, torch::kLong);
  torch::nn::Linear model(8, 3);
  const auto sum = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum);

  // Ranks evaluate different numbers of samples: rank r those between the r-th and the next
  // triangular number, the last rank the others.
  const std::int64_t rank = world.rank();
  const std::int64_t begin = std::min(samples, rank * (rank + 1) / 2);
  const std::int64_t end =
      rank + 1 == world.size() ? samples : std::min(samples, (rank + 1) * (rank + 2) / 2);

  // Sums and their count travel, never averages: the average of the ranks' averages would give the
  // samples of a rank that has few of them more weight. A double holds counts up to 2^53 exactly.
  std::array<double, 3> sums{};  // loss, correct answers, samples
  for (std::int64_t i = begin; i < end; i += 16) {
    const torch::Tensor outputs = model->forward(inputs.slice(0, i, std::min(i + 16, end)));
    const torch::Tensor expected = labels.slice(0, i, std::min(i + 16, end));
    sums[0] += torch::nn::functional::cross_entropy(outputs, expected, sum).item<double>();
    sums[1] += outputs.argmax(1).eq(expected).sum().item<double>();
    sums[2] += static_cast<double>(expected.size(0));
  }
  hora::allreduce(world, hora::view(sums.data(), std::int64_t{sums.size()}),
                  {.name = "metrics", .op = hora::ReduceOp::sum});
  const double loss = sums[0] / sums[2];
  const double accuracy = sums[1] / sums[2];
  if (world.rank() == 0) {
    std::cout << "loss " << loss << ", accuracy " << 100 * accuracy << " %\n";
  }

  // One process that evaluates all samples finds the same.
  const torch::Tensor outputs = model->forward(inputs);
  const double whole = torch::nn::functional::cross_entropy(outputs, labels).item<double>();
  const double right = outputs.argmax(1).eq(labels).to(torch::kDouble).mean().item<double>();
  TORCH_CHECK(std::abs(loss - whole) < 1e-5, "the loss is ", loss, ", expected ", whole);
  TORCH_CHECK(std::abs(accuracy - right) < 1e-9, "the accuracy is ", accuracy, ", not ", right);
}
