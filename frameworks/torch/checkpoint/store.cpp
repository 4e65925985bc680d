#include "frameworks/torch/checkpoint/store.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <tuple>

namespace hora::internal {

int Descriptor::close() {
  return number_ < 0 ? 0 : ::close(std::exchange(number_, -1));
}

namespace {

namespace fs = std::filesystem;

std::string system_text(int number) {
  return std::generic_category().message(number) + " (errno " + std::to_string(number) + ")";
}

[[noreturn]] void fail(const std::string& path, const std::string& what, int number = errno) {
  throw Error(ErrorCode::invalid_argument,
              in_quotes(path) + " cannot be " + what + ": " + system_text(number));
}

tl::unexpected<std::string> refused(const std::string& why) {
  return tl::unexpected(why);
}

tl::unexpected<std::string> refused(const std::string& path, const std::string& why) {
  return tl::unexpected(in_quotes(path) + ": " + why);
}

std::string join(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name);
}

constexpr std::size_t kLongestWrite = std::size_t{64} << 20;

/// `file`: a new one, or what open() says where it cannot be made.
void write_durably(const std::string& path, Descriptor file, std::span<const std::byte> bytes) {
  if (file.get() < 0) fail(path, "made");
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(file.get(), bytes.data(), std::min(bytes.size(), kLongestWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path, "written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0) fail(path, "written to the disk");
  if (file.close() != 0) fail(path, "closed");
}

/// Makes a file (mode 0600) that holds `bytes`, on the disk when it returns. There must be none of
/// this name, unless `over`.
void write_durably(const std::string& path, std::span<const std::byte> bytes, bool over = false) {
  const int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | (over ? 0 : O_EXCL);
  Descriptor file(::open(path.c_str(), flags, S_IRUSR | S_IWUSR));
  const auto size = static_cast<off_t>(bytes.size());
  if (over && file.get() >= 0 && ::ftruncate(file.get(), size) != 0) fail(path, "written");
  write_durably(path, std::move(file), bytes);
}

std::span<const std::byte> bytes_in(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Removes temporary files that no live writer has changed for an hour.
void remove_leftovers(const fs::path& folder, const std::string& begin) {
  const auto oldest = fs::file_time_type::clock::now() - std::chrono::hours(1);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!entry.path().filename().native().starts_with(begin)) continue;
    if (entry.last_write_time(ignored) < oldest) fs::remove(entry.path(), ignored);
  }
}

/// The names in the folder are on the disk when it returns.
void sync_folder(const std::string& folder) {
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) fail(folder, "opened");
  // Some file systems have no such call for folders.
  if (::fsync(opened.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail(folder, "written to the disk");
  }
}

/// Makes the folder and those above it where they are missing (mode 0700), durably.
void make_folders(const std::string& folder) {
  const fs::path path(folder);
  if (fs::is_directory(path)) return;
  const std::string above = path.parent_path();
  if (!above.empty()) make_folders(above);
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) fail(folder, "made");
  if (!fs::is_directory(path)) fail(folder, "made", ENOTDIR);
  sync_folder(above.empty() ? "." : above);
}

void rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(from, "renamed to " + in_quotes(to));
}

/// Follows no link; nothing where there is nothing of this name.
std::optional<struct stat> stat_of(const std::string& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0 ? std::optional(facts) : std::nullopt;
}

/// Throws where another one, in this process or another, has it.
Descriptor locked(const std::string& folder) {
  const std::string path = folder + "/.lock";
  Descriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() < 0) fail(path, "opened");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return file;
  throw Error(ErrorCode::invalid_argument,
              in_quotes(folder) +
                  " has another writer of checkpoints: a second job, or another node that sees the "
                  "same folder; give each a folder of its own (without per_node rank 0 writes for "
                  "all)");
}

}  // namespace

void replace_durably(const std::string& path, std::span<const std::byte> bytes) {
  const fs::path whole(path);
  const std::string folder = whole.has_parent_path() ? whole.parent_path().string() : ".";
  const std::string begin = path + ".new-";
  remove_leftovers(folder, fs::path(begin).filename());
  std::string temporary = begin + "XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  try {
    write_durably(path, Descriptor(descriptor), bytes);
    rename(temporary, path);
  } catch (...) {
    if (descriptor >= 0) ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(folder);
}

tl::expected<std::vector<std::byte>, std::string> read_file(const std::string& path,
                                                            std::uint64_t most) {
  // O_NONBLOCK: a FIFO is not waited for.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) return refused("it cannot be opened: " + system_text(errno));
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return refused(system_text(errno));
  if (!S_ISREG(facts.st_mode)) return refused("it is no regular file");
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  if (size > most) {
    return refused("it has " + std::to_string(size) + " bytes, more than the " +
                   std::to_string(most) + " that it can have");
  }
  std::vector<std::byte> bytes(size);
  std::span<std::byte> rest(bytes);
  while (!rest.empty()) {
    const ssize_t read = ::read(file.get(), rest.data(), std::min(rest.size(), kLongestWrite));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return refused("it cannot be read: " + system_text(errno));
    if (read == 0) return refused("it has become shorter while it was read");
    rest = rest.subspan(static_cast<std::size_t>(read));
  }
  return bytes;
}

namespace {

std::string checksum_of(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

constexpr std::string_view kManifestName = "manifest.json";
/// A longer one is refused.
constexpr std::size_t kMaxManifestBytes = std::size_t{1} << 20;
constexpr const char* kFormat = "hora checkpoint";
constexpr int kVersion = 1;
constexpr std::size_t kDigits = 32;
constexpr std::string_view kBeforeChecksum = "  \"checksum\": \"";
constexpr std::string_view kAfterChecksum = "\"\n}\n";

/// Names lead to nothing outside of the folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

/// Whether the text ends with its own checksum.
bool is_undamaged(std::string_view text) {
  constexpr std::size_t kTail = kBeforeChecksum.size() + kDigits + kAfterChecksum.size();
  if (text.size() < kTail || text.size() > kMaxManifestBytes || !text.ends_with(kAfterChecksum) ||
      text.substr(text.size() - kTail, kBeforeChecksum.size()) != kBeforeChecksum) {
    return false;
  }
  const std::size_t place = text.size() - kAfterChecksum.size() - kDigits;
  std::string zeroed(text);
  zeroed.replace(place, kDigits, kDigits, '0');
  return checksum_of(bytes_in(zeroed)) == text.substr(place, kDigits);
}

int number_of_ranks(const Manifest& manifest) {
  return std::accumulate(manifest.ranks_of_nodes.begin(), manifest.ranks_of_nodes.end(), 0);
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  nlohmann::json json = manifest;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["ranks"] = number_of_ranks(manifest);
  std::string text = json.dump(2);
  const std::string zeros(kDigits, '0');
  text.replace(text.size() - 2, 2,
               ",\n" + std::string(kBeforeChecksum) + zeros + std::string(kAfterChecksum));
  text.replace(text.size() - kAfterChecksum.size() - kDigits, kDigits, checksum_of(bytes_in(text)));
  return text;
}

tl::expected<Manifest, std::string> parse_manifest(std::string_view text) {
  if (!is_undamaged(text)) {
    return refused("it does not end with its checksum: it is cut short or damaged");
  }
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("format") != kFormat || json.at("version") != kVersion) {
      return refused("it is of another format than \"" + std::string(kFormat) + "\", version " +
                     std::to_string(kVersion) + ": another version of hora has written it");
    }
    auto manifest = json.get<Manifest>();
    if (number_of_ranks(manifest) < 1 || manifest.shards < 0 || manifest.shard < -1 ||
        manifest.shard >= manifest.shards) {
      return refused("its ranks or shards are none");
    }
    if (!std::ranges::all_of(manifest.files, is_plain_name, &ManifestFile::name)) {
      return refused("it names a file that is not in its folder");
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    return refused(std::string("its JSON is none of a checkpoint: ") + error.what());
  }
}

namespace {

/// Returns the lowest rank's.
const FoundPart* find_shard(const Manifest& main, int shard, std::span<const FoundPart> found) {
  const FoundPart* first = nullptr;
  for (const FoundPart& part : found) {
    if (part.manifest.save != main.save || part.manifest.shard != shard) continue;
    if (first == nullptr || part.rank < first->rank) first = &part;
  }
  return first;
}

}  // namespace

std::vector<int> missing_shards(const Manifest& main, std::span<const FoundPart> found) {
  std::vector<int> missing;
  for (int shard = 0; shard < main.shards; ++shard) {
    if (find_shard(main, shard, found) == nullptr) missing.push_back(shard);
  }
  return missing;
}

std::vector<FoundPart> newest_complete(std::span<const FoundPart> found, std::string_view slot) {
  const FoundPart* newest = nullptr;
  const auto age = [](const FoundPart& part) {
    return std::tuple(part.manifest.time, part.manifest.step, part.manifest.save, -part.rank);
  };
  for (const FoundPart& part : found) {
    if (part.manifest.shard >= 0 || (!slot.empty() && part.folder != slot)) continue;
    if (!missing_shards(part.manifest, found).empty()) continue;
    if (newest == nullptr || age(part) > age(*newest)) newest = &part;
  }
  if (newest == nullptr) return {};
  std::vector<FoundPart> set{*newest};
  for (int shard = 0; shard < newest->manifest.shards; ++shard) {
    set.push_back(*find_shard(newest->manifest, shard, found));
  }
  return set;
}

namespace {

// A save is written into kStaged (and kStagedBest) completely; then it is renamed.
constexpr std::string_view kStaged = ".new";
constexpr std::string_view kStagedBest = ".new-best";
constexpr std::string_view kDiscarded = ".old";
constexpr std::string_view kDiscardedBest = ".old-best";

std::string wrong_size(std::uint64_t bytes, std::uint64_t expected) {
  return "it has " + std::to_string(bytes) + " bytes; expected " + std::to_string(expected);
}

/// Why the folder is no complete checkpoint, else its manifest.
tl::expected<Manifest, std::string> look_at(const std::string& folder) {
  const auto facts = stat_of(folder);
  if (!facts || !S_ISDIR(facts->st_mode)) {
    return refused(folder, "it is no folder (links are not followed)");
  }
  const std::string path = join(folder, kManifestName);
  const auto bytes = read_file(path, kMaxManifestBytes);
  if (!bytes) return refused(path, bytes.error());
  auto manifest = parse_manifest({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  if (!manifest) return refused(path, manifest.error());
  for (const ManifestFile& file : manifest->files) {
    const std::string file_path = join(folder, file.name);
    const auto of_file = stat_of(file_path);
    if (!of_file) return refused(file_path, system_text(errno));
    if (!S_ISREG(of_file->st_mode)) return refused(file_path, "it is no regular file");
    const auto size = static_cast<std::uint64_t>(of_file->st_size);
    if (size != file.bytes) return refused(file_path, wrong_size(size, file.bytes));
  }
  return manifest;
}

/// Puts what is staged, where it is complete, in place, each by a name that is free: the last one
/// becomes the previous one, or is discarded where that one is the newest that all ranks have
/// completely. At each moment the last, the previous or the staged one is complete. After a save,
/// and before the next for what a killed one has left.
void rotate(const std::string& folder, const std::string& complete) {
  const auto path = [&](std::string_view slot) { return join(folder, slot); };
  const auto there = [&](std::string_view slot) { return stat_of(path(slot)).has_value(); };
  const auto is_complete = [&](std::string_view slot) {
    const auto manifest = look_at(path(slot));
    return manifest && manifest->save == complete;
  };
  const auto remove = [&](std::string_view slot) {
    std::error_code error;
    fs::remove_all(path(slot), error);
    if (error) fail(path(slot), "removed", error.value());
  };
  const auto move = [&](std::string_view from, std::string_view to) {
    if (there(from)) rename(path(from), path(to));
  };
  remove(kDiscarded);
  remove(kDiscardedBest);
  if (look_at(path(kStaged))) {
    if (is_complete(kPrevious) && !is_complete(kLast)) {
      move(kLast, kDiscarded);
    } else if (there(kLast)) {
      move(kPrevious, kDiscarded);
      move(kLast, kPrevious);
    }
    move(kStaged, kLast);
  } else {
    remove(kStaged);
  }
  if (look_at(path(kStagedBest))) {
    move(kBest, kDiscardedBest);
    move(kStagedBest, kBest);
  } else {
    remove(kStagedBest);
  }
  remove(kDiscardedBest);
  remove(kDiscarded);
  sync_folder(folder);
}

}  // namespace

void CheckpointFolder::write(Manifest manifest, std::span<const FileImage> files, bool best,
                             const std::string& complete) {
  make_folders(folder_);
  if (!lock_) lock_.emplace(locked(folder_));
  rotate(folder_, complete);
  manifest.files.clear();
  for (const FileImage& file : files) {
    manifest.files.push_back({file.name, file.bytes.size(), checksum_of(file.bytes)});
  }
  const std::string text = to_text(manifest);
  std::vector<FileImage> all(files.begin(), files.end());
  all.push_back({std::string(kManifestName), bytes_in(text)});
  const std::string staged = join(folder_, kStaged);
  const std::string staged_best = join(folder_, kStagedBest);
  try {
    if (reuses_files_ && stat_of(join(folder_, kPrevious))) {
      rename(join(folder_, kPrevious), staged);
      ::unlink(join(staged, kManifestName).c_str());  // it is incomplete from now on
    }
    make_folders(staged);
    for (const FileImage& file : all) {
      write_durably(join(staged, file.name), file.bytes, reuses_files_);
    }
    sync_folder(staged);
    if (best) {
      // It has the same files under a second name, where the file system can.
      make_folders(staged_best);
      for (const FileImage& file : all) {
        const std::string to = join(staged_best, file.name);
        if (::link(join(staged, file.name).c_str(), to.c_str()) != 0) write_durably(to, file.bytes);
      }
      sync_folder(staged_best);
    }
  } catch (...) {
    // The disk may be full: what is of no use takes no place.
    std::error_code ignored;
    fs::remove_all(staged_best, ignored);
    fs::remove_all(staged, ignored);
    throw;
  }
  rotate(folder_, complete);
}

FolderContents contents_of_folder(const std::string& folder) {
  if (folder.empty()) return {};
  std::vector<std::string> below{""};
  std::error_code ignored;  // a node may lack the folder
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("rank-")) below.push_back(name + "/");
  }
  std::ranges::sort(below);
  FolderContents contents;
  for (const std::string& part : below) {
    for (const std::string_view slot :
         {kLast, kPrevious, kBest, kStaged, kStagedBest, kDiscarded, kDiscardedBest}) {
      const std::string name = part + std::string(slot);
      const std::string path = join(folder, name);
      if (!stat_of(path)) continue;
      if (auto manifest = look_at(path)) {
        contents.found.push_back({0, name, std::move(*manifest)});
      } else if (!slot.starts_with('.')) {  // else a save that was not completed
        contents.refused.push_back(manifest.error());
      }
    }
  }
  return contents;
}

tl::expected<std::vector<std::byte>, std::string> read_checked(const std::string& folder,
                                                               const ManifestFile& file) {
  const std::string path = join(folder, file.name);
  auto bytes = read_file(path, file.bytes);
  if (!bytes) return refused(path, bytes.error());
  if (bytes->size() != file.bytes) return refused(path, wrong_size(bytes->size(), file.bytes));
  if (const std::string checksum = checksum_of(*bytes); checksum != file.checksum) {
    return refused(
        path, "its checksum is " + checksum + "; expected " + file.checksum + ": it is damaged");
  }
  return bytes;
}

}  // namespace hora::internal
