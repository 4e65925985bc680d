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
#include <nlohmann/json.hpp>
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

[[noreturn]] void fail(const std::string& path, const std::string& what, int number) {
  throw Error(ErrorCode::invalid_argument,
              in_quotes(path) + " cannot be " + what + ": " + system_text(number));
}

constexpr std::size_t kLongestWrite = std::size_t{64} << 20;

/// `file`: a new one, or what open() says where it cannot be made.
void write_durably(const std::string& path, Descriptor file, std::span<const std::byte> bytes) {
  if (file.get() < 0) fail(path, "made", errno);
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(file.get(), bytes.data(), std::min(bytes.size(), kLongestWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path, "written", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0) fail(path, "written to the disk", errno);
  if (file.close() != 0) fail(path, "closed", errno);
}

/// Makes a new file (mode 0600) that holds `bytes`, on the disk when it returns.
void write_durably(const std::string& path, std::span<const std::byte> bytes) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  write_durably(path, Descriptor(::open(path.c_str(), kFlags, S_IRUSR | S_IWUSR)), bytes);
}

std::span<const std::byte> bytes_in(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// A file's temporary names before the random part.
constexpr std::string_view kTemporary = ".new-";

/// Temporary files that no live writer has changed for so long were left by a killed one.
constexpr std::chrono::hours kLeftOver(1);

void remove_leftovers(const fs::path& folder, const std::string& begin) {
  const auto oldest = fs::file_time_type::clock::now() - kLeftOver;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!entry.path().filename().native().starts_with(begin)) continue;
    if (entry.last_write_time(ignored) < oldest) fs::remove(entry.path(), ignored);
  }
}

/// The names in the folder are on the disk when it returns.
void sync_folder(const std::string& folder) {
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) fail(folder, "opened", errno);
  // Some file systems have no such call for folders.
  if (::fsync(opened.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail(folder, "written to the disk", errno);
  }
}

/// Makes the folder and those above it where they are missing (mode 0700), durably.
void make_folders(const std::string& folder) {
  const fs::path path(folder);
  if (fs::is_directory(path)) return;
  const std::string above = path.parent_path();
  if (!above.empty()) make_folders(above);
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) fail(folder, "made", errno);
  if (!fs::is_directory(path)) fail(folder, "made", ENOTDIR);
  sync_folder(above.empty() ? "." : above);
}

void rename_durably(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(from, "renamed to " + in_quotes(to), errno);
}

void remove_folder(const std::string& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) fail(folder, "removed", error.value());
}

/// Follows no link; nothing where there is nothing of this name.
std::optional<struct stat> stat_of(const std::string& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0 ? std::optional(facts) : std::nullopt;
}

/// The error where `facts` are not of a regular file.
tl::expected<std::uint64_t, std::string> size_in(const struct stat& facts) {
  if (!S_ISREG(facts.st_mode)) return tl::unexpected(std::string("it is no regular file"));
  return static_cast<std::uint64_t>(facts.st_size);
}

/// Throws where another one, in this process or another, has it.
Descriptor locked(const std::string& folder) {
  const std::string path = folder + "/.lock";
  Descriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() < 0) fail(path, "opened", errno);
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
  const std::string begin = path + std::string(kTemporary);
  remove_leftovers(folder, fs::path(begin).filename());
  std::string temporary = begin + "XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  try {
    write_durably(path, Descriptor(descriptor), bytes);
    rename_durably(temporary, path);
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
  if (file.get() < 0) return tl::unexpected("it cannot be opened: " + system_text(errno));
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return tl::unexpected(system_text(errno));
  const auto size = size_in(facts);
  if (!size) return tl::unexpected(size.error());
  if (*size > most) {
    return tl::unexpected("it has " + std::to_string(*size) + " bytes, more than the " +
                          std::to_string(most) + " that it can have");
  }
  std::vector<std::byte> bytes(*size);
  std::span<std::byte> rest(bytes);
  while (!rest.empty()) {
    const ssize_t read = ::read(file.get(), rest.data(), std::min(rest.size(), kLongestWrite));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return tl::unexpected("it cannot be read: " + system_text(errno));
    if (read == 0) return tl::unexpected(std::string("it has become shorter while it was read"));
    rest = rest.subspan(static_cast<std::size_t>(read));
  }
  return bytes;
}

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

namespace {

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

/// Says what is wrong with the text as such.
std::optional<std::string> damage_of(std::string_view text) {
  if (text.size() > kMaxManifestBytes) return "it is longer than 1 MiB";
  constexpr std::size_t kTail = kBeforeChecksum.size() + kDigits + kAfterChecksum.size();
  if (text.size() < kTail || !text.ends_with(kAfterChecksum) ||
      text.substr(text.size() - kTail, kBeforeChecksum.size()) != kBeforeChecksum) {
    return "it does not end with its checksum: it is cut short or damaged";
  }
  const std::size_t place = text.size() - kAfterChecksum.size() - kDigits;
  std::string zeroed(text);
  zeroed.replace(place, kDigits, kDigits, '0');
  if (checksum_of(bytes_in(zeroed)) == text.substr(place, kDigits)) return std::nullopt;
  return "its text does not have the checksum that it names: it is damaged";
}

int number_of_ranks(const Manifest& manifest) {
  return std::accumulate(manifest.ranks_of_nodes.begin(), manifest.ranks_of_nodes.end(), 0);
}

std::string problem_of(const Manifest& manifest) {
  if (number_of_ranks(manifest) < 1 || manifest.shards < 0 || manifest.shard < -1 ||
      manifest.shard >= manifest.shards) {
    return "its ranks or shards are none";
  }
  for (const ManifestFile& file : manifest.files) {
    if (!is_plain_name(file.name)) return "it names a file that is not in its folder";
  }
  return "";
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["save"] = manifest.save;
  json["step"] = manifest.step;
  json["epoch"] = manifest.epoch;
  json["time"] = manifest.time;
  json["ranks"] = number_of_ranks(manifest);
  json["ranks_of_nodes"] = manifest.ranks_of_nodes;
  json["shards"] = manifest.shards;
  json["shard"] = manifest.shard;
  json["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}});
  }
  json["checksum"] = std::string(kDigits, '0');
  std::string text = json.dump(2) + "\n";
  text.replace(text.size() - kAfterChecksum.size() - kDigits, kDigits, checksum_of(bytes_in(text)));
  return text;
}

tl::expected<Manifest, std::string> parse_manifest(std::string_view text) {
  if (const auto damage = damage_of(text)) return tl::unexpected(*damage);
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("format") != kFormat || json.at("version") != kVersion) {
      return tl::unexpected("it is of another format than \"" + std::string(kFormat) +
                            "\", version " + std::to_string(kVersion) +
                            ": another version of hora has written it");
    }
    Manifest manifest;
    json.at("save").get_to(manifest.save);
    json.at("step").get_to(manifest.step);
    json.at("epoch").get_to(manifest.epoch);
    json.at("time").get_to(manifest.time);
    json.at("ranks_of_nodes").get_to(manifest.ranks_of_nodes);
    json.at("shards").get_to(manifest.shards);
    json.at("shard").get_to(manifest.shard);
    for (const auto& file : json.at("files")) {
      manifest.files.push_back({file.at("name"), file.at("bytes"), file.at("checksum")});
    }
    if (std::string problem = problem_of(manifest); !problem.empty()) {
      return tl::unexpected(std::move(problem));
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    return tl::unexpected(std::string("its JSON is none of a checkpoint: ") + error.what());
  }
}

namespace {

/// The lowest rank's.
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

std::optional<CompleteSet> newest_complete(std::span<const FoundPart> found,
                                           std::string_view slot) {
  std::vector<const FoundPart*> mains;
  for (const FoundPart& part : found) {
    if (part.manifest.shard < 0 && (slot.empty() || part.folder == slot)) mains.push_back(&part);
  }
  std::ranges::stable_sort(mains, [](const FoundPart* a, const FoundPart* b) {
    const auto age = [](const Manifest& m) { return std::tie(m.time, m.step, m.save); };
    if (age(a->manifest) != age(b->manifest)) return age(a->manifest) > age(b->manifest);
    return a->rank < b->rank;
  });
  for (const FoundPart* main : mains) {
    if (!missing_shards(main->manifest, found).empty()) continue;
    CompleteSet set{*main};
    for (int shard = 0; shard < main->manifest.shards; ++shard) {
      set.push_back(*find_shard(main->manifest, shard, found));
    }
    return set;
  }
  return std::nullopt;
}

std::vector<Move> rotation_plan(const SlotsThere& there) {
  // A folder is renamed to a name that is free.
  std::vector<Move> plan;
  const auto rename = [&](std::string_view from, std::string_view to) {
    plan.push_back({std::string(from), std::string(to)});
  };
  const auto remove = [&](std::string_view folder) { rename(folder, ""); };
  remove(kDiscarded);
  remove(kDiscardedBest);
  if (there.staged) {
    if (there.last && there.previous)
      rename(there.previous_is_kept ? kLast : kPrevious, kDiscarded);
    if (there.last && !(there.previous && there.previous_is_kept)) rename(kLast, kPrevious);
    rename(kStaged, kLast);
  } else {
    remove(kStaged);
  }
  if (there.staged_best) {
    if (there.best) rename(kBest, kDiscardedBest);
    rename(kStagedBest, kBest);
  } else {
    remove(kStagedBest);
  }
  remove(kDiscardedBest);
  remove(kDiscarded);
  return plan;
}

namespace {

std::string join(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name);
}

std::string wrong_size(const std::string& path, std::uint64_t bytes, std::uint64_t expected) {
  return in_quotes(path) + ": it has " + std::to_string(bytes) + " bytes; expected " +
         std::to_string(expected);
}

/// Why the folder is no complete checkpoint, else its manifest.
tl::expected<Manifest, std::string> look_at(const std::string& folder) {
  const auto refuse = [](const std::string& path, const std::string& why) {
    return tl::unexpected(in_quotes(path) + ": " + why);
  };
  const auto facts = stat_of(folder);
  if (!facts || !S_ISDIR(facts->st_mode)) {
    return refuse(folder, "it is no folder (links are not followed)");
  }
  const std::string path = join(folder, kManifestName);
  const auto bytes = read_file(path, kMaxManifestBytes);
  if (!bytes) return refuse(path, bytes.error());
  auto manifest = parse_manifest({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  if (!manifest) return refuse(path, manifest.error());
  for (const ManifestFile& file : manifest->files) {
    const std::string file_path = join(folder, file.name);
    const auto of_file = stat_of(file_path);
    if (!of_file) return refuse(file_path, system_text(errno));
    const auto size = size_in(*of_file);
    if (!size) return refuse(file_path, size.error());
    if (*size != file.bytes) return tl::unexpected(wrong_size(file_path, *size, file.bytes));
  }
  return manifest;
}

void rotate(const std::string& folder, const std::string& complete) {
  const auto there = [&](std::string_view slot) { return stat_of(join(folder, slot)).has_value(); };
  const auto is_whole = [&](std::string_view slot) {
    return look_at(join(folder, slot)).has_value();
  };
  const auto is_kept = [&](std::string_view slot) {
    const auto manifest = look_at(join(folder, slot));
    return manifest && manifest->save == complete;
  };
  for (const Move& move : rotation_plan({.last = there(kLast),
                          .previous = there(kPrevious),
                          .best = there(kBest),
                          .staged = is_whole(kStaged),
                          .staged_best = is_whole(kStagedBest),
                          .previous_is_kept = is_kept(kPrevious) && !is_kept(kLast)})) {
    if (move.to.empty()) {
      remove_folder(join(folder, move.from));
    } else {
      rename_durably(join(folder, move.from), join(folder, move.to));
    }
  }
  sync_folder(folder);
}

}  // namespace

std::string CheckpointFolder::path(std::string_view slot) const {
  return join(folder_, slot);
}

void CheckpointFolder::stage(std::string_view slot, std::span<const FileImage> files) const {
  make_folders(path(slot));
  for (const FileImage& file : files) {
    const std::string to = join(path(slot), file.name);
    const std::string staged = join(path(kStaged), file.name);
    // The best one has the same files under a second name, where the file system can.
    if (slot == kStagedBest && ::link(staged.c_str(), to.c_str()) == 0) continue;
    write_durably(to, file.bytes);
  }
  sync_folder(path(slot));
}

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
  try {
    stage(kStaged, all);
    if (best) stage(kStagedBest, all);
  } catch (...) {
    // The disk may be full: what is of no use takes no place.
    std::error_code ignored;
    fs::remove_all(path(kStagedBest), ignored);
    fs::remove_all(path(kStaged), ignored);
    throw;
  }
  rotate(folder_, complete);
}

FolderContents contents_of_folder(const std::string& folder) {
  FolderContents contents;
  for (const std::string_view slot :
       {kLast, kPrevious, kBest, kStaged, kStagedBest, kDiscarded, kDiscardedBest}) {
    const std::string path = join(folder, slot);
    if (!stat_of(path)) continue;
    if (auto manifest = look_at(path)) {
      contents.found.push_back({0, std::string(slot), std::move(*manifest)});
    } else if (!slot.starts_with('.')) {  // else a save that was not completed
      contents.refused.push_back(manifest.error());
    }
  }
  return contents;
}

tl::expected<std::vector<std::byte>, std::string> read_checked(const std::string& folder,
                                                               const ManifestFile& file) {
  const std::string path = join(folder, file.name);
  auto bytes = read_file(path, file.bytes);
  if (!bytes) return tl::unexpected(in_quotes(path) + ": " + bytes.error());
  if (bytes->size() != file.bytes) {
    return tl::unexpected(wrong_size(path, bytes->size(), file.bytes));
  }
  if (const std::string checksum = checksum_of(*bytes); checksum != file.checksum) {
    return tl::unexpected(in_quotes(path) + ": its checksum is " + checksum + "; expected " +
                          file.checksum + ": it is damaged");
  }
  return bytes;
}

}  // namespace hora::internal
