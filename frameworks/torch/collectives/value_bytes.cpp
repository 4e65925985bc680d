#include "frameworks/torch/collectives/value_bytes.h"

#include <ATen/ATen.h>
#include <hora/printable.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

/// The numbers are part of the wire format: append, never reorder.
enum class Kind : std::uint8_t {
  none = 0,
  tensor = 1,
  undefined_tensor = 2,
  integer = 3,
  real = 4,
  boolean = 5,
  text = 6,
  tensors = 7,   ///< a list of tensors
  integers = 8,  ///< likewise
  reals = 9,
  booleans = 10,
  list = 11,  ///< of anything
  tuple = 12,
};

constexpr int kMaxDepth = 8;
constexpr std::size_t kMaxDimensions = 64;

/// Types whose elements are plain bytes. LibTorch's numbers are the same in all its versions.
bool is_plain(c10::ScalarType type) {
  return (type >= c10::ScalarType::Byte && type <= c10::ScalarType::Bool) ||
         type == c10::ScalarType::BFloat16;
}

void write_tensor(ByteWriter& writer, const at::Tensor& tensor, const std::string& name) {
  if (!tensor.defined()) return writer.put(Kind::undefined_tensor);
  if (tensor.layout() != c10::kStrided || !is_plain(tensor.scalar_type())) {
    refuse_tensor(name, std::string("a tensor of type ") + c10::toString(tensor.scalar_type()) +
                            " that is sparse or quantised; expected a dense one of numbers");
  }
  const at::Tensor plain =
      tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();  // NOLINT
  writer.put(Kind::tensor);
  writer.put(static_cast<std::int8_t>(plain.scalar_type()));
  writer.put(static_cast<std::uint64_t>(plain.dim()));
  for (const std::int64_t extent : plain.sizes()) writer.put(extent);
  writer.put_bytes(plain.data_ptr(), plain.nbytes());
}

at::Tensor read_tensor(BoundedReader& reader) {
  const auto type = static_cast<c10::ScalarType>(reader.take<std::int8_t>());
  if (!is_plain(type)) reader.refuse("a tensor of an unknown type");
  const std::size_t dimensions = reader.take_count(sizeof(std::int64_t));
  if (dimensions > kMaxDimensions) reader.refuse("a tensor of too many dimensions");
  std::vector<std::int64_t> shape;
  bool empty = false;
  Checked bytes = c10::elementSize(type);
  for (std::size_t d = 0; d < dimensions; ++d) {
    shape.push_back(reader.take<std::int64_t>());
    empty = empty || shape.back() == 0;
    // Rows must be countable also where there are none.
    if (shape.back() != 0) bytes = bytes * shape.back();
  }
  if (!bytes.at_most(kMaxBytes)) reader.refuse("a tensor's shape is none");
  const auto content = reader.take_bytes(empty ? 0 : bytes.value());
  at::Tensor tensor = at::empty(shape, type);
  if (!content.empty()) std::memcpy(tensor.data_ptr(), content.data(), content.size());
  return tensor;
}

c10::IValue read_nested(BoundedReader& reader, int depth);

template <class T, class Read>
c10::List<T> read_list(BoundedReader& reader, Read read) {
  c10::List<T> list;
  for (std::size_t left = reader.take_count(1); left > 0; --left) list.push_back(read());
  return list;
}

std::vector<c10::IValue> read_values(BoundedReader& reader, int depth) {
  std::vector<c10::IValue> values;
  for (std::size_t left = reader.take_count(1); left > 0; --left) {
    values.push_back(read_nested(reader, depth + 1));
  }
  return values;
}

c10::IValue read_nested(BoundedReader& reader, int depth) {
  if (depth > kMaxDepth) reader.refuse("values are nested too deep");
  const auto element = [&] { return read_nested(reader, depth + 1); };
  const auto tensor = [&] {
    const c10::IValue value = element();
    if (!value.isTensor()) reader.refuse("a list of tensors with something else");
    return value.toTensor();
  };
  switch (reader.take<Kind>()) {
    case Kind::none:
      return {};
    case Kind::tensor:
      return read_tensor(reader);
    case Kind::undefined_tensor:
      return at::Tensor();
    case Kind::integer:
      return reader.take<std::int64_t>();
    case Kind::real:
      return reader.take<double>();
    case Kind::boolean:
      return reader.take<std::uint8_t>() != 0;
    case Kind::text:
      return reader.take_text();
    case Kind::tensors:
      return read_list<at::Tensor>(reader, tensor);
    case Kind::integers:
      return read_list<std::int64_t>(reader, [&] { return reader.take<std::int64_t>(); });
    case Kind::reals:
      return read_list<double>(reader, [&] { return reader.take<double>(); });
    case Kind::booleans:
      return read_list<bool>(reader, [&] { return reader.take<std::uint8_t>() != 0; });
    case Kind::list: {
      c10::impl::GenericList list(c10::AnyType::get());
      for (c10::IValue& value : read_values(reader, depth)) list.push_back(std::move(value));
      return list;
    }
    case Kind::tuple:
      return c10::ivalue::Tuple::create(read_values(reader, depth));
  }
  reader.refuse("a value of an unknown kind");
}

template <class List, class Write>
void write_list(ByteWriter& writer, Kind kind, const List& list, Write write) {
  writer.put(kind);
  writer.put(static_cast<std::uint64_t>(list.size()));
  for (const auto& element : list) write(element);
}

}  // namespace

void write_value(ByteWriter& writer, const c10::IValue& value, const std::string& name) {
  const auto number = [&](auto element) { writer.put(element); };
  const auto any = [&](const c10::IValue& element) { write_value(writer, element, name); };
  if (value.isNone()) {
    writer.put(Kind::none);
  } else if (value.isTensor()) {
    write_tensor(writer, value.toTensor(), name);
  } else if (value.isInt()) {
    writer.put(Kind::integer);
    writer.put(value.toInt());
  } else if (value.isDouble()) {
    writer.put(Kind::real);
    writer.put(value.toDouble());
  } else if (value.isBool()) {
    writer.put(Kind::boolean);
    writer.put(static_cast<std::uint8_t>(value.toBool()));
  } else if (value.isString()) {
    writer.put(Kind::text);
    writer.put_text(value.toStringRef());
  } else if (value.isTensorList()) {
    write_list(writer, Kind::tensors, value.toTensorVector(), any);
  } else if (value.isIntList()) {
    write_list(writer, Kind::integers, value.toIntVector(), number);
  } else if (value.isDoubleList()) {
    write_list(writer, Kind::reals, value.toDoubleVector(), number);
  } else if (value.isBoolList()) {
    write_list(writer, Kind::booleans, value.toBoolList().vec(),
               [&](bool element) { writer.put(static_cast<std::uint8_t>(element)); });
  } else if (value.isList()) {
    write_list(writer, Kind::list, value.toListRef(), any);
  } else if (value.isTuple()) {
    const auto tuple = value.toTuple();
    write_list(writer, Kind::tuple, tuple->elements(), any);
  } else {
    refuse_tensor(name, "a " + value.tagKind() +
                            "; expected tensors, numbers, texts, or lists or tuples of them");
  }
}

c10::IValue read_value(BoundedReader& reader) {
  return read_nested(reader, 0);
}

namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

/// A key's length, a kind and a value's kind.
constexpr std::size_t kLeastEntryBytes = 10;

enum class Entry : std::uint8_t { value = 0, archive = 1 };

/// The only archives that are ever read: those that this process has just written.
InputArchive reopened(OutputArchive& archive, const torch::Device& device) {
  std::ostringstream stream;
  archive.save_to(stream);
  const std::string text = std::move(stream).str();
  InputArchive result;
  result.load_from(text.data(), text.size(), device);
  return result;
}

void write_archive(ByteWriter& writer, InputArchive& archive, const std::string& name) {
  const std::vector<std::string> keys = archive.keys();
  writer.put(static_cast<std::uint64_t>(keys.size()));
  for (const std::string& key : keys) {
    writer.put_text(key);
    InputArchive nested;
    if (archive.try_read(key, nested)) {
      writer.put(Entry::archive);
      write_archive(writer, nested, name);
      continue;
    }
    c10::IValue value;
    archive.read(key, value);
    writer.put(Entry::value);
    write_value(writer, value, name);
  }
}

/// LibTorch turns keys into quoted text of TorchScript, which it then parses: a key may not end it.
std::string take_key(BoundedReader& reader) {
  std::string key = reader.take_text();
  const bool is_plain = std::ranges::all_of(
      key, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (key.empty() || !is_plain)
    reader.refuse("the key of an entry, " + in_quotes(key) + ", is none");
  return key;
}

void read_archive(BoundedReader& reader, OutputArchive& archive, int depth) {
  if (depth > kMaxDepth) reader.refuse("archives are nested too deep");
  for (std::size_t left = reader.take_count(kLeastEntryBytes); left > 0; --left) {
    const std::string key = take_key(reader);
    switch (reader.take<Entry>()) {
      case Entry::value:
        archive.write(key, read_value(reader));
        continue;
      case Entry::archive: {
        OutputArchive nested(archive.compilation_unit());
        read_archive(reader, nested, depth + 1);
        archive.write(key, nested);
        continue;
      }
    }
    reader.refuse("an entry of an unknown kind");
  }
}

}  // namespace

std::string archive_bytes(OutputArchive& archive, const std::string& name) {
  InputArchive written = reopened(archive, torch::kCPU);
  ByteWriter writer;
  write_archive(writer, written, name);
  return std::move(writer).take();
}

InputArchive archive_of(std::span<const std::byte> bytes, const BytesOrigin& origin,
                        const torch::Device& device) {
  BoundedReader reader(bytes, origin);
  try {
    OutputArchive archive;
    read_archive(reader, archive, 0);
    reader.expect_end();
    return reopened(archive, device);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    reader.refuse(error.what_without_backtrace());  // such as a duplicate key
  } catch (const std::exception& error) {
    reader.refuse(error.what());  // of LibTorch's parser
  }
}

}  // namespace hora::internal
