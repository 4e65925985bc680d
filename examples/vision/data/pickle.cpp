#include "examples/vision/data/pickle.h"

#include <stdexcept>
#include <utility>

namespace vision {

Pickle::Pickle(std::span<const std::uint8_t> bytes, std::string where)
    : where_(std::move(where)), pickle_(run_pickle(bytes, where_)) {
  if (pickle_.objects[pickle_.root].kind != PickleKind::dictionary) {
    fail("is no dictionary");
  }
}

void Pickle::fail(const std::string& what) const {
  throw std::runtime_error(where_ + ": the pickle " + what);
}

const PickleObject& Pickle::value(std::string_view key, PickleKind kind,
                                  const char* in_words) const {
  const std::vector<PickleIndex>& items = pickle_.objects[pickle_.root].items;
  // Python takes the last of equal keys.
  for (std::size_t i = items.size(); i > 0; i -= 2) {
    if (pickle_.objects[items[i - 2]].is(key)) {
      const PickleObject& found = pickle_.objects[items[i - 1]];
      if (found.kind != kind) {
        fail("has under '" + std::string(key) + "' no " + in_words);
      }
      return found;
    }
  }
  fail("has no key '" + std::string(key) + "'");
}

std::vector<std::int64_t> Pickle::integers(std::string_view key) const {
  std::vector<std::int64_t> numbers;
  for (const PickleIndex item : value(key, PickleKind::list, "list").items) {
    if (pickle_.objects[item].kind != PickleKind::integer) {
      fail("has under '" + std::string(key) + "' something other than whole numbers");
    }
    numbers.push_back(pickle_.objects[item].number);
  }
  return numbers;
}

std::vector<std::string> Pickle::strings(std::string_view key) const {
  std::vector<std::string> strings;
  for (const PickleIndex item : value(key, PickleKind::list, "list").items) {
    const PickleObject& object = pickle_.objects[item];
    if (object.kind != PickleKind::string) {
      fail("has under '" + std::string(key) + "' something other than strings");
    }
    strings.emplace_back(object.text.begin(), object.text.end());
  }
  return strings;
}

ByteMatrix Pickle::matrix(std::string_view key) const {
  const PickleObject& array = value(key, PickleKind::array, "numpy array");
  const std::string name = "has under '" + std::string(key) + "' an array ";
  std::vector<std::size_t> shape;
  for (const PickleIndex item : array.items) {
    const PickleObject& side = pickle_.objects[item];
    if (side.kind != PickleKind::integer || side.number < 0) {
      fail(name + "whose shape is not of whole numbers");
    }
    shape.push_back(static_cast<std::size_t>(side.number));
  }
  // Each side is below 2^31: the product does not overflow.
  if (shape.size() != 2 || shape[0] * shape[1] != array.text.size()) {
    fail(name + "of " + std::to_string(shape.size()) + " dimensions and " +
         std::to_string(array.text.size()) + " bytes; expected 2 dimensions and their product");
  }
  return {shape[0], shape[1], array.number != 0, array.text};
}

}  // namespace vision
