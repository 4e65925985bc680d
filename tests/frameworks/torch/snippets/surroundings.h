/// Names that snippets of documents use without declaring them.
#pragma once

#include <gtest/gtest.h>
#include <hora/mpi.h>
#include <hora/torch.h>

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace snippets {

/// Before init().
struct Program {
  int argc = 0;
  char** argv = nullptr;
  int rank = 0;
  bool is_trainer = true;
  static void train(const hora::Context& world) { hora::barrier(world); }
};

/// A small model, whose parameters differ between ranks until they are broadcast.
struct World {
  World() {
    embedding->forward(torch::arange(4)).sum().backward();
    if (world.rank() == 0) {
      std::filesystem::remove_all("models");
      torch::save(adam, "adam.pt");
    }
    hora::barrier(world);
  }

  hora::Context world = hora::init();
  std::vector<float> values = std::vector<float>(8, 1.0F);
  std::vector<float> gradients = values, weights = values, biases = values;
  float matrix[4][3] = {};
  std::int64_t rows = 4;
  std::uint64_t epoch = 0, epochs = 2;
  std::int64_t steps = 1000;
  std::string path = "train.txt";

  torch::nn::Linear model = seeded_model(world.rank());
  torch::optim::SGD sgd{model->parameters(), torch::optim::SGDOptions(0.01)};
  torch::optim::Adam adam{model->parameters()};
  torch::nn::Embedding embedding{torch::nn::EmbeddingOptions(8, 2).sparse(true)};
  std::vector<torch::Tensor> images = std::vector<torch::Tensor>(64, torch::ones(8));
  torch::data::datasets::TensorDataset dataset{images};
  std::unique_ptr<std::vector<torch::Tensor>> loader =
      std::make_unique<std::vector<torch::Tensor>>(4, torch::ones({16, 8}));
  hora::DistributedSampler sampler{images.size(),
                                   {.rank = world.rank(), .size = world.size(), .batch = 16}};
  torch::Tensor loss = torch::ones({}), accuracy = torch::ones({}), weight = torch::ones(4);
  torch::Tensor predictions = torch::ones({2, 3});
  std::vector<torch::Tensor> tensors{loss, accuracy};
  torch::Tensor output = torch::randn({8, 10}), target = torch::randint(10, 8, torch::kInt64);
  hora::AverageMeter top1{"Acc@1"}, top5{"Acc@5"};
  double percent = 50;
  int count = 8;

  static torch::nn::Linear seeded_model(int rank) {
    torch::manual_seed(static_cast<std::uint64_t>(rank));
    return torch::nn::Linear(8, 1);
  }
  template <class Model>
  static torch::Tensor loss_of(Model& any, const torch::Tensor& batch) {
    return any->forward(batch).square().mean();
  }
  void train_one_step(hora::DistributedOptimizer& optimizer) {
    optimizer.zero_grad();
    loss_of(model, loader->front()).backward();
    optimizer.step();
  }
  void train_one_epoch() const { hora::barrier(world); }
  static void compute_something_else() {}
  static std::string read_configuration() { return "rate: 0.1"; }
  template <class... Values>
  static void train_on(const Values&...) {}
  static void use(float value) { EXPECT_EQ(value, 1.0F); }
};

/// With an optimizer that can step.
struct Training : World {
  Training() { hora::broadcast_parameters(world, *model); }
  hora::DistributedOptimizer optimizer{world, sgd, model->named_parameters()};
};

}  // namespace snippets

// Snippets declare what is above, too, and variables that nobody uses.
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
