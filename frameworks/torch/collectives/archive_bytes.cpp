#include "frameworks/torch/collectives/archive_bytes.h"

#include <hora/printable.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>
#include <vector>

#include "frameworks/torch/collectives/value_bytes.h"

namespace hora {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr int kMaxDepth = 8;
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

/// LibTorch makes script of the keys, which it then reads: no key may hold more than a key.
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

}  // namespace hora
