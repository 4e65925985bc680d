/// A small network without BatchNorm, the batches that the ranks share, and tensors compared.
#pragma once

#include <gtest/gtest.h>
#include <hora/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace hora::internal::test {

/// Smooth everywhere: at a kink of a ReLU two orders of summation could take different sides.
inline torch::nn::Sequential small_network(std::uint64_t seed,
                                           torch::ScalarType type = torch::kFloat) {
  torch::manual_seed(seed);
  torch::nn::Sequential network(torch::nn::Conv2d(3, 4, 3), torch::nn::Tanh(), torch::nn::Flatten(),
                                torch::nn::Linear(64, 8), torch::nn::Tanh(),
                                torch::nn::Linear(8, 5));
  network->to(type);
  return network;
}

struct Batch {
  torch::Tensor images;  // [count, 3, 6, 6]
  torch::Tensor labels;  // [count]
};

/// The same on every rank.
inline Batch whole_batch(std::uint64_t seed, std::int64_t count,
                         torch::ScalarType type = torch::kFloat) {
  torch::manual_seed(seed);
  return {torch::randn({count, 3, 6, 6}, type), torch::randint(5, {count}, torch::kLong)};
}

/// Rank `rank`'s `count` images of it.
inline Batch part_of(const Batch& whole, int rank, std::int64_t count) {
  return {whole.images.narrow(0, rank * count, count), whole.labels.narrow(0, rank * count, count)};
}

inline torch::Tensor loss_of(torch::nn::Sequential& network, const Batch& batch) {
  return torch::cross_entropy_loss(network->forward(batch.images), batch.labels);
}

inline std::vector<torch::Tensor> copies_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

/// Collective: are this rank's bits rank 0's?
inline bool equals_root(const Context& world, const torch::Tensor& tensor) {
  torch::Tensor root = tensor.detach().clone();
  broadcast_(world, root);
  return torch::equal(root, tensor);
}

/// Mean of `values` over ranks 0 .. size-1, where rank r's is f(r): what averaging must give.
template <class F>
double mean_over_ranks(const Context& world, F f) {
  double sum = 0.0;
  for (int rank = 0; rank < world.size(); ++rank) sum += f(rank);
  return sum / world.size();
}

/// Expects the same types and, element by element, bits.
inline void expect_equal(const std::vector<torch::Tensor>& actual,
                         const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << i;
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
  }
}

/// Rank 0's temporary folder, on every rank of the context. The end is collective, too.
class SharedFolder {
 public:
  explicit SharedFolder(const Context& world)
      : world_(world), path_(broadcast_object(world, own_.path().string())) {}
  ~SharedFolder() { barrier(world_); }

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  const Context& world_;
  const TemporaryFolder own_;
  const std::string path_;
};

}  // namespace hora::internal::test
