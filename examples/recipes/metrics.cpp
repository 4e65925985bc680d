/// Averages of loss and accuracy over all ranks' samples, by one allreduce.
#include <hora/torch.h>

#include <algorithm>
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

  // Ranks evaluate different numbers of samples: rank r those between the r-th and the next
  // triangular number, the last rank the others.
  const std::int64_t rank = world.rank();
  const std::int64_t begin = std::min(samples, rank * (rank + 1) / 2);
  const std::int64_t end =
      rank + 1 == world.size() ? samples : std::min(samples, (rank + 1) * (rank + 2) / 2);

  hora::AverageMeter losses("Loss", {.precision = 4, .scientific = true});
  hora::AverageMeter top1("Acc@1", {.width = 6, .precision = 2});
  hora::AverageMeter top2("Acc@2", {.width = 6, .precision = 2});
  for (std::int64_t i = begin; i < end; i += 16) {
    const torch::Tensor outputs = model->forward(inputs.slice(0, i, std::min(i + 16, end)));
    const torch::Tensor expected = labels.slice(0, i, std::min(i + 16, end));
    const std::int64_t count = expected.size(0);
    const torch::Tensor correct = hora::topk_correct(outputs, expected, {1, 2}).cpu();
    losses.update(torch::nn::functional::cross_entropy(outputs, expected).item<double>(), count);
    top1.update(100.0 * correct[0].item<double>() / static_cast<double>(count), count);
    top2.update(100.0 * correct[1].item<double>() / static_cast<double>(count), count);
  }
  // Sums and counts travel, never averages: the average of the ranks' averages would give the
  // samples of a rank that has few of them more weight.
  const auto all = hora::meters_of_all_ranks(world, {losses, top1, top2});
  if (world.rank() == 0) {
    for (const hora::AverageMeter& meter : all) std::cout << meter.average_text() << "  ";
    std::cout << "of " << all[0].count() << " samples\n";
  }

  // One process that evaluates all samples finds the same.
  const torch::Tensor outputs = model->forward(inputs);
  const double loss = torch::nn::functional::cross_entropy(outputs, labels).item<double>();
  const double right = outputs.argmax(1).eq(labels).to(torch::kDouble).mean().item<double>();
  TORCH_CHECK(std::abs(all[0].average() - loss) < 1e-5, all[0].average_text(), ", not ", loss);
  TORCH_CHECK(std::abs(all[1].average() - 100 * right) < 1e-9, all[1].average_text());
  TORCH_CHECK(all[2].average() >= all[1].average(), all[2].average_text());
}
