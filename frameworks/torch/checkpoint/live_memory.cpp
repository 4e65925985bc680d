#include "frameworks/torch/checkpoint/live_memory.h"

#include <fcntl.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <unordered_map>

#include "core/base/checked.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

std::string file_of(const std::string& folder) {
  return folder + "/live";
}
std::string table_of(const std::string& folder) {
  return file_of(folder) + ".json";
}

void remove_live(const std::string& folder) noexcept {
  ::unlink(table_of(folder).c_str());
  ::unlink(file_of(folder).c_str());
}

/// A process that is killed has made the stores before its last one, in the order of the program.
struct LiveHeader {
  struct Copy {
    LiveCommit commit;
    std::uint64_t bytes;               ///< of the image
    std::atomic<std::uint64_t> whole;  ///< its commit's count; 0: it is being written
  };
  std::atomic<std::uint64_t> whole;  ///< the tensors are that commit's; 0: they are changing
  std::array<Copy, 2> copies;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::size_t begin_of_copy(std::size_t index, std::size_t room) {
  return align_up(sizeof(LiveHeader)) + index * align_up(room);
}

struct TableEntry {
  std::string name;
  int type = 0;  ///< c10::ScalarType
  std::vector<std::int64_t> sizes, strides;
  std::size_t begin = 0;  ///< in the file; of a value: in a copy

  at::Tensor tensor_in(const std::shared_ptr<LiveMapping>& mapping, std::size_t offset) const;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TableEntry, name, type, sizes, strides, begin)

struct Table {
  Manifest manifest;
  std::vector<std::string> parts;
  std::size_t room = 0;          ///< of a copy
  std::size_t values_bytes = 0;  ///< in it
  std::vector<TableEntry> tensors, values;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Table, manifest, parts, room, values_bytes, tensors, values)

TableEntry entry_of(const std::string& name, const at::Tensor& tensor, std::size_t begin) {
  return {name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec(),
          tensor.strides().vec(), begin};
}

}  // namespace

/// A file in memory.
class LiveMapping {
 public:
  /// `bytes`: of a new one; 0: one that is there is read.
  LiveMapping(const std::string& path, std::size_t bytes) : bytes_(bytes) {
    const bool is_new = bytes > 0;
    const Descriptor file(::open(
        path.c_str(), (is_new ? O_RDWR | O_CREAT | O_EXCL : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC,
        S_IRUSR | S_IWUSR));
    struct stat facts {};
    int error = file.get() < 0 ? errno : 0;
    // Where memory lacks, it is an error here, in place of SIGBUS later.
    if (error == 0 && is_new) error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
    if (error == 0 && ::fstat(file.get(), &facts) != 0) error = errno;
    bytes_ = static_cast<std::size_t>(facts.st_size);
    void* const data = error == 0 ? ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                           is_new ? MAP_SHARED : MAP_PRIVATE, file.get(), 0)
                                  : MAP_FAILED;
    if (data == MAP_FAILED) {
      refuse_argument(in_quotes(path), " with ", bytes,
                      " bytes: ", std::generic_category().message(error == 0 ? errno : error));
    }
    data_ = static_cast<std::byte*>(data);
  }
  LiveMapping(const LiveMapping&) = delete;
  LiveMapping& operator=(const LiveMapping&) = delete;
  ~LiveMapping() { ::munmap(data_, bytes_); }

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  LiveHeader& header() const { return *reinterpret_cast<LiveHeader*>(data_); }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

at::Tensor TableEntry::tensor_in(const std::shared_ptr<LiveMapping>& mapping,
                                 std::size_t offset) const {
  if (offset + begin > mapping->bytes()) refuse_argument("it lies outside of the file");
  return tensor_on(mapping, mapping->data() + offset + begin, static_cast<c10::ScalarType>(type),
                   at::kCPU, sizes, at::IntArrayRef(strides));
}

void keep_reserve(const std::string& folder, std::uint64_t reserve) {
  if (std::filesystem::space(folder).available >= reserve) return;
  std::filesystem::remove_all(folder);
  refuse_argument("/dev/shm would have less left than the ", reserve >> 20,
                  " MiB that the next generation's ranks need; make it larger");
}

LiveMemory::LiveMemory(const std::string& folder, const LiveTraining& training,
                       const NamedTensors& tensors, const NamedTensors& values, std::size_t room,
                       std::uint64_t reserve) {
  Table table{training.manifest, training.parts, 0, 0, {}, {}};
  for (const auto& item : values) {
    table.values.push_back(entry_of(item.key(), item.value(), values_bytes_));
    values_.emplace_back(static_cast<const std::byte*>(item.value().data_ptr()),
                         item.value().nbytes());
    values_bytes_ += align_up(item.value().nbytes());
  }
  table.values_bytes = values_bytes_;
  table.room = room_ = values_bytes_ + align_up(room);
  std::unordered_map<c10::StorageImpl*, std::size_t> begins;
  std::vector<std::pair<c10::StorageImpl*, std::size_t>> storages;
  std::size_t end = begin_of_copy(2, room_);
  for (const auto& item : tensors) {
    const at::Tensor& tensor = item.value();
    auto* const storage = tensor.storage().unsafeGetStorageImpl();
    const auto [place, is_new] = begins.emplace(storage, end);
    if (is_new) {
      storages.emplace_back(storage, std::exchange(end, end + align_up(storage->nbytes())));
    }
    const auto offset = static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
    table.tensors.push_back(entry_of(item.key(), tensor, place->second + offset));
    tensors_.push_back({item.key(), tensor});
  }
  std::filesystem::create_directories(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  remove_live(folder);
  mapping_ = std::make_shared<LiveMapping>(file_of(folder), end);
  keep_reserve(folder, reserve);
  for (const auto& [storage, begin] : storages) {
    std::byte* const memory = mapping_->data() + begin;
    if (storage->nbytes() > 0) std::memcpy(memory, storage->data(), storage->nbytes());
    storage->set_data_ptr(at::DataPtr(
        memory, new std::shared_ptr(mapping_),
        [](void* kept) { delete static_cast<std::shared_ptr<LiveMapping>*>(kept); }, at::kCPU));
  }
  const std::string text = nlohmann::json(table).dump();
  replace_durably(table_of(folder), std::as_bytes(std::span(text)));
}

bool LiveMemory::keep(const LiveCommit& commit, std::span<const std::byte> image) {
  if (values_bytes_ + image.size() > room_) return false;
  LiveHeader& header = mapping_->header();
  LiveHeader::Copy& copy = header.copies[commit.count % 2];
  copy.whole.store(0);
  std::byte* const begin = mapping_->data() + begin_of_copy(commit.count % 2, room_);
  std::size_t end = 0;
  for (const auto& value : values_) {
    std::memcpy(begin + end, value.data(), value.size());
    end += align_up(value.size());
  }
  std::memcpy(begin + end, image.data(), image.size());
  copy.commit = commit;
  copy.bytes = image.size();
  copy.whole.store(commit.count);
  for (Tensor& each : tensors_) each.version = each.tensor._version();
  header.whole.store(commit.count);
  return true;
}

std::string LiveMemory::change_begins() {
  const bool was_whole = mapping_->header().whole.exchange(0) != 0;
  const auto has_changed = [](const Tensor& each) {
    return each.version != each.tensor._version();
  };
  const auto changed = std::ranges::find_if(tensors_, has_changed);
  return was_whole && changed != tensors_.end() ? changed->name : "";
}

std::optional<LiveContents> take_live(const std::string& folder) {
  const std::string taken = table_of(folder) + ".taken";
  if (::rename(table_of(folder).c_str(), taken.c_str()) != 0) return std::nullopt;
  const auto text = read_file(taken, std::size_t{1} << 30);
  ::unlink(taken.c_str());
  if (!text) return std::nullopt;
  try {
    const auto table = nlohmann::json::parse(text->begin(), text->end()).get<Table>();
    const auto mapping = std::make_shared<LiveMapping>(file_of(folder), 0);
    remove_live(folder);
    LiveContents contents;
    contents.training = {table.manifest, table.parts};
    for (const TableEntry& entry : table.tensors) {
      contents.tensors.insert(entry.name, entry.tensor_in(mapping, 0));
    }
    const LiveHeader& header = mapping->header();
    for (std::size_t i = 0; i < header.copies.size(); ++i) {
      const LiveHeader::Copy& copy = header.copies[i];
      const std::size_t begin = begin_of_copy(i, table.room);
      if (copy.whole.load() == 0 || table.values_bytes + copy.bytes > table.room) continue;
      const std::byte* const image = mapping->data() + begin + table.values_bytes;
      auto entries = contents_of(Bytes(image, image + copy.bytes));
      if (!entries) continue;
      for (const TableEntry& entry : table.values) {
        entries->tensors.insert(entry.name, entry.tensor_in(mapping, begin));
      }
      contents.copies.push_back(
          {copy.commit, header.whole.load() == copy.commit.count, std::move(entries->tensors)});
    }
    std::ranges::sort(contents.copies, {}, [](const auto& copy) { return copy.commit.count; });
    return contents;
  } catch (const std::exception&) {  // killed while they were made
    return std::nullopt;
  }
}

}  // namespace hora::internal
