#include <algorithm>
#include <numeric>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

class Broadcast : public Conformance {};

TEST_F(Broadcast, EveryRootOfEveryTypeAndShape) {
  for_each_type([&]<class T>() {
    for (const Shape& shape : shapes_of_17()) {
      const std::int64_t count = count_of(shape);
      for (int root = 0; root < size(); ++root) {
        const std::string name = "from" + std::to_string(root) + "." + std::to_string(shape.size());
        for (int round = 0; round < 2; ++round) {  // new name, known name
          auto values = input<T>(rank(), count, 1);
          broadcast(world(), view_of<T>(values, shape), {.name = name, .root = root});
          ASSERT_EQ(values, input<T>(root, count, 1))
              << name_of(data_type_of<T>) << " " << name << ", round " << round;
        }
      }
    }
  });
}

TEST_F(Broadcast, InPlaceInABuffer) {
  const Buffer buffer(context(), 1024, where());
  const TensorView whole{buffer.data(), DataType::uint8, {1024}, where()};
  for (int root = 0; root < size(); ++root) {
    const auto own = static_cast<std::uint8_t>(rank() + 1);
    here().write(whole, Elements<std::uint8_t>(1024, own));
    broadcast(world(), {buffer.data() + 3, DataType::uint8, {17, 17}, where()},
              {.name = "inside", .root = root});
    const auto bytes = here().read<std::uint8_t>(whole);
    EXPECT_EQ(std::count(bytes.begin() + 3, bytes.begin() + 3 + 289, root + 1), 289);
    EXPECT_EQ(bytes[2], own);
    EXPECT_EQ(bytes[3 + 289], own);
  }
}

TEST_F(Broadcast, BitsThatAreNoNumbersArrive) {
  std::vector<std::uint32_t> bits = {0x7fc12345U, 0xffc00001U, 0x80000000U, 0x00000001U};
  if (rank() != 0) bits.assign(4, 0);
  broadcast(world(), placed(reinterpret_cast<float*>(bits.data()), 4), {.name = "nan"});
  EXPECT_EQ(bits, (std::vector<std::uint32_t>{0x7fc12345U, 0xffc00001U, 0x80000000U, 1U}));
}

TEST_F(Broadcast, EmptyTensorsAndScalars) {
  for (int root = 0; root < size(); ++root) {
    broadcast(world(), view(static_cast<float*>(nullptr), Shape{0, 17}),
              {.name = "none", .root = root});
    double value = rank();
    broadcast(world(), placed(value), {.name = "scalar", .root = root});
    EXPECT_EQ(value, root);
  }
}

TEST_F(Broadcast, ManyInFlightFromManyRoots) {
  constexpr std::size_t kTensors = 60;
  std::vector<std::size_t> order(kTensors);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int round = 0; round < 3; ++round) {
    std::vector<Elements<std::int64_t>> values(kTensors);
    std::vector<Placed> tensors(kTensors);
    std::vector<Handle> handles(kTensors);
    const auto root_of = [&](std::size_t t) {
      return static_cast<int>(t + static_cast<std::size_t>(round)) % size();
    };
    std::shuffle(order.begin(), order.end(), own_random());
    for (const std::size_t t : order) {
      const auto count = static_cast<std::int64_t>(t * 11 % 300);
      values[t] = input<std::int64_t>(rank(), count, t);
      tensors[t] = view_of<std::int64_t>(values[t], {count});
      handles[t] = broadcast_async(world(), tensors[t],
                                   {.name = "tensor" + std::to_string(t), .root = root_of(t)});
    }
    std::shuffle(order.begin(), order.end(), own_random());
    for (const std::size_t t : order) {
      handles[t].wait();
      tensors[t].take_back();
      const auto count = static_cast<std::int64_t>(values[t].size());
      ASSERT_EQ(values[t], input<std::int64_t>(root_of(t), count, t)) << "tensor " << t;
    }
  }
}

TEST_F(Broadcast, OnEvenAndOddRanks) {
  const ProcessSet set = add_even_and_odd();
  for_each_type([&]<class T>() {
    for (const int root : ranks_of(context(), set)) {
      auto values = input<T>(rank(), 289, 0);
      broadcast(world(), view_of<T>(values, {17, 17}),
                {.name = "x", .root = root, .process_set = set});
      EXPECT_EQ(values, input<T>(root, 289, 0)) << "root " << root;
    }
  });
  float value = 0;
  const auto ranks = ranks_of(context(), set);
  for (int root = 0; root < size(); ++root) {
    if (std::find(ranks.begin(), ranks.end(), root) != ranks.end()) continue;
    expect_error(ErrorCode::invalid_argument, [&] {
      broadcast(world(), placed(&value, 1), {.name = "x", .root = root, .process_set = set});
    });
  }
  barrier(world());
}

TEST_F(Broadcast, DisagreementsAreTheSameErrorOnEveryRank) {
  std::vector<float> floats(12, 1.0F);
  std::vector<std::int32_t> ints(12, 1);
  const auto right = [&](const std::string& name) {
    floats.assign(12, static_cast<float>(rank()));
    broadcast(world(), placed(floats.data(), 12), {.name = name});
    EXPECT_EQ(floats, std::vector<float>(12, 0.0F));
  };
  const auto expect = [&](std::vector<std::string> words, TensorView of_odd, int root_of_odd = 0) {
    expect_disagreement({std::move(words),
                         [&](const std::string& name, bool odd) {
                           broadcast(world(), odd ? of_odd : TensorView(placed(floats)),
                                     {.name = name, .root = odd ? root_of_odd : 0});
                         }},
                        right);
  };
  expect({"type", "float32", "int32"}, placed(ints.data(), 12));
  expect({"shape", "[12]", "[10]"}, placed(floats.data(), 10));
  expect({"number of dimensions", "[12]", "[12, 1]"}, placed(floats.data(), Shape{12, 1}));
  expect({"root", "from rank 0", "from rank 1"}, placed(floats.data(), 12), 1);
}

TEST_F(Broadcast, ARootThatDoesNotExistIsRefusedAtOnce) {
  float value = 1.0F;
  for (const int root : {-1, size()}) {
    expect_error(ErrorCode::invalid_argument,
                 [&] { broadcast(world(), placed(&value, 1), {.name = "x", .root = root}); });
  }
  value = static_cast<float>(rank());
  broadcast(world(), placed(&value, 1), {.name = "x"});
  EXPECT_EQ(value, 0.0F);
}

}  // namespace
}  // namespace hora::internal::test
