#include "frameworks/torch/checkpoint/safetensors.h"

#include <hora/printable.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/checked.h"

namespace hora::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are written as they lie");

struct TypeName {
  DataType type;
  std::string_view name;
};
/// In the order of the format's library, which writes the last ones first.
constexpr std::array kTypes{
    TypeName{DataType::boolean, "BOOL"},  TypeName{DataType::uint8, "U8"},
    TypeName{DataType::int8, "I8"},       TypeName{DataType::int16, "I16"},
    TypeName{DataType::uint16, "U16"},    TypeName{DataType::float16, "F16"},
    TypeName{DataType::bfloat16, "BF16"}, TypeName{DataType::int32, "I32"},
    TypeName{DataType::uint32, "U32"},    TypeName{DataType::float32, "F32"},
    TypeName{DataType::float64, "F64"},   TypeName{DataType::int64, "I64"},
    TypeName{DataType::uint64, "U64"},
};
static_assert(kTypes.size() == static_cast<std::size_t>(last_of<DataType>) + 1);

std::size_t place_of(DataType type) {
  return static_cast<std::size_t>(std::ranges::find(kTypes, type, &TypeName::type) -
                                  kTypes.begin());
}

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxDimensions = 64;
constexpr std::string_view kMetadata = "__metadata__";

/// Nothing where the shape is none, or its bytes cannot be counted.
std::optional<std::uint64_t> bytes_of(DataType type, const std::vector<std::int64_t>& shape) {
  if (shape.size() > kMaxDimensions) return std::nullopt;
  Checked bytes = size_of(type);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    empty = empty || extent == 0;
    // Rows must be countable also where there are none.
    if (extent != 0) bytes = bytes * extent;
  }
  if (!bytes.at_most(kMaxBytes)) return std::nullopt;
  return empty ? 0 : bytes.value();
}

/// Reads the header's JSON from first to last, and stops at what does not belong there: duplicate
/// keys, which a tree of values would hide, and depth.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fraction"); }
  bool binary(binary_t&) override { return refuse("bytes"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (level_ != Level::array) return refuse("a number");
    if (numbers_.size() > kMaxDimensions) return stop("a list of over 64 numbers");
    numbers_.push_back(value);
    return true;
  }

  bool string(string_t& text) override {
    if (level_ == Level::metadata) {
      if (!result.metadata.emplace(key_, text).second) return duplicate();
      return true;
    }
    if (level_ != Level::tensor || key_ != "dtype") return refuse("a text");
    const auto found = std::ranges::find(kTypes, text, &TypeName::name);
    if (found == kTypes.end()) return stop("its dtype " + in_quotes(text) + " is unknown");
    if (has_type_) return duplicate();
    has_type_ = true;
    tensor_.type = found->type;
    return true;
  }

  bool key(string_t& text) override {
    key_ = text;
    if (level_ != Level::top) return true;
    if (!names_.insert(text).second) return duplicate();
    if (text != kMetadata) tensor_.name = text;
    return true;
  }

  bool start_object(std::size_t) override {
    if (level_ == Level::none) {
      level_ = Level::top;
    } else if (level_ == Level::top) {
      level_ = key_ == kMetadata ? Level::metadata : Level::tensor;
      has_type_ = has_shape_ = has_offsets_ = false;
      tensor_.shape.clear();
    } else {
      return refuse("an object");
    }
    return true;
  }

  bool end_object() override {
    if (level_ == Level::top) {
      level_ = Level::none;
      return true;
    }
    if (level_ == Level::tensor) {
      if (!has_type_ || !has_shape_ || !has_offsets_) {
        return stop("it lacks dtype, shape or data_offsets");
      }
      result.tensors.push_back(tensor_);
    }
    level_ = Level::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (level_ != Level::tensor || (key_ != "shape" && key_ != "data_offsets")) {
      return refuse("a list");
    }
    if (key_ == "shape" ? has_shape_ : has_offsets_) return duplicate();
    level_ = Level::array;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    level_ = Level::tensor;
    if (key_ == "shape") {
      has_shape_ = true;
      for (const std::uint64_t extent : numbers_) {
        if (!std::in_range<std::int64_t>(extent)) return stop("its shape is none");
        tensor_.shape.push_back(static_cast<std::int64_t>(extent));
      }
      return true;
    }
    has_offsets_ = true;
    if (numbers_.size() != 2 || numbers_[0] > numbers_[1]) {
      return stop("its data_offsets are not a begin and an end");
    }
    tensor_.offset = numbers_[0];
    tensor_.bytes = numbers_[1] - numbers_[0];
    return true;
  }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    problem = std::string("the header is no JSON: ") + error.what();
    return false;
  }

  Safetensors result;  ///< offsets from the header's end
  std::string problem;

 private:
  enum class Level { none, top, metadata, tensor, array };

  std::string where() const {
    if (level_ == Level::tensor || level_ == Level::array) {
      return "tensor " + in_quotes(tensor_.name);
    }
    return key_.empty() ? "the header" : "key " + in_quotes(key_);
  }
  bool stop(const std::string& what) {
    problem = where() + ": " + what;
    return false;
  }
  bool refuse(const std::string& what) {
    return stop(what + " where none is expected" +
                (key_.empty() ? std::string() : ", at " + in_quotes(key_)));
  }
  bool duplicate() { return stop(in_quotes(key_) + " is there twice"); }

  Level level_ = Level::none;
  std::string key_;
  std::set<std::string> names_;
  TensorEntry tensor_;
  std::vector<std::uint64_t> numbers_;
  bool has_type_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

/// Each byte of the data belongs to one tensor. Empty where that is so.
std::string range_problem(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::ranges::stable_sort(tensors, {}, [](const TensorEntry& tensor) {
    return std::tuple(tensor.offset, tensor.bytes);
  });
  std::uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    const std::string name = "tensor " + in_quotes(tensor.name);
    const auto expected = bytes_of(tensor.type, tensor.shape);
    if (!expected) return name + ": its shape is none, or too large";
    if (*expected != tensor.bytes) {
      return name + ": its data_offsets span " + std::to_string(tensor.bytes) +
             " bytes, its shape and dtype " + std::to_string(*expected);
    }
    if (tensor.offset != end) {
      return name + ": it begins at byte " + std::to_string(tensor.offset) +
             " of the data, the one before ends at " + std::to_string(end);
    }
    if (tensor.bytes > data_bytes - end) {
      return name + ": it ends at byte " + std::to_string(end + tensor.bytes) +
             " of the data, which has " + std::to_string(data_bytes);
    }
    end += tensor.bytes;
  }
  if (end == data_bytes) return "";
  return "the last tensor ends at byte " + std::to_string(end) + " of the data, which has " +
         std::to_string(data_bytes);
}

std::string quoted_json(const std::string& text) {
  return nlohmann::json(text).dump();
}

std::string json_of(const TensorEntry& tensor) {
  std::string text = quoted_json(tensor.name) + R"(:{"dtype":")" +
                     std::string(kTypes[place_of(tensor.type)].name) + R"(","shape":[)";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(tensor.shape[i]);
  }
  return text + R"(],"data_offsets":[)" + std::to_string(tensor.offset) + "," +
         std::to_string(tensor.offset + tensor.bytes) + "]}";
}

}  // namespace

tl::expected<Safetensors, std::string> parse_safetensors(std::span<const std::byte> file) {
  std::uint64_t header_bytes = 0;
  if (file.size() < kLengthBytes) {
    return tl::unexpected("it has " + std::to_string(file.size()) +
                          " bytes, fewer than the 8 of a header's length");
  }
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  const std::uint64_t rest = file.size() - kLengthBytes;
  if (header_bytes > kMaxHeaderBytes || header_bytes > rest) {
    return tl::unexpected(
        std::string("it is no safetensors file (torch.save() writes none), or cut off"));
  }
  const auto* const text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (header_bytes == 0 || text[0] != '{') {
    return tl::unexpected(
        std::string("it is no safetensors file: its header does not begin with '{'"));
  }
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, text + header_bytes, &reader)) {
    return tl::unexpected(reader.problem);
  }
  Safetensors result = std::move(reader.result);
  if (std::string problem = range_problem(result.tensors, rest - header_bytes); !problem.empty()) {
    return tl::unexpected(std::move(problem));
  }
  for (TensorEntry& tensor : result.tensors) tensor.offset += kLengthBytes + header_bytes;
  return result;
}

tl::expected<SafetensorsLayout, std::string> lay_out_safetensors(
    std::vector<TensorEntry> tensors, const std::map<std::string, std::string>& metadata) {
  std::ranges::sort(tensors, [](const TensorEntry& a, const TensorEntry& b) {
    const std::size_t place_of_a = place_of(a.type);
    const std::size_t place_of_b = place_of(b.type);
    return place_of_a != place_of_b ? place_of_a > place_of_b : a.name < b.name;
  });
  std::set<std::string_view> names{kMetadata};
  std::uint64_t end = 0;
  for (TensorEntry& tensor : tensors) {
    const auto bytes = bytes_of(tensor.type, tensor.shape);
    const std::string name = "tensor " + in_quotes(tensor.name);
    if (!names.insert(tensor.name).second) return tl::unexpected(name + ": its name is taken");
    if (!bytes || *bytes > kMaxBytes - end) return tl::unexpected(name + ": it is too large");
    tensor.offset = end;
    tensor.bytes = *bytes;
    end += *bytes;
  }
  SafetensorsLayout layout;
  try {
    std::string header;
    if (!metadata.empty())
      header += quoted_json(std::string(kMetadata)) + ":" + nlohmann::json(metadata).dump();
    for (const TensorEntry& tensor : tensors) {
      header += (header.empty() ? "" : ",") + json_of(tensor);
    }
    header = "{" + header + "}";
    header.append((8 - header.size() % 8) % 8, ' ');
    const std::uint64_t length = header.size();
    if (length > kMaxHeaderBytes) return tl::unexpected(std::string("its header is over 100 MB"));
    layout.header.resize(kLengthBytes);
    std::memcpy(layout.header.data(), &length, kLengthBytes);
    layout.header += header;
  } catch (const nlohmann::json::exception& error) {
    return tl::unexpected(std::string("a name is no UTF-8: ") + error.what());
  }
  for (TensorEntry& tensor : tensors) tensor.offset += layout.header.size();
  layout.bytes = layout.header.size() + end;
  layout.tensors = std::move(tensors);
  return layout;
}

}  // namespace hora::internal
