#include <ATen/Context.h>
#include <hora/objects_json.h>
#include <hora/phase.h>
#include <hora/printable.h>
#include <hora/torch/checkpoint.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <unordered_map>

#include "core/base/diagnostics.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "frameworks/torch/checkpoint/live_memory.h"
#include "frameworks/torch/optimizer/optimizer.h"
#include "frameworks/torch/tensor_view.h"

namespace hora {
using namespace internal;
namespace {

[[noreturn]] void reject(const std::string& what, int rank = -1) {
  throw Error(ErrorCode::invalid_argument, "Checkpoint: " + what, rank);
}

// Parts beside the weights. Entries are named "<part>/<entry>", and "ranks/<rank>/<part>/<entry>"
// where they are a rank's own.

constexpr std::string_view kRanks = "ranks/";
/// Entry of parts that have one.
constexpr const char* kValue = "value";

/// One part as it was saved.
struct SavedPart {
  NamedTensors shared = NamedTensors();
  std::map<int, NamedTensors> of_rank;

  /// All that any rank has saved.
  std::vector<NamedTensors> all() const {
    std::vector<NamedTensors> all{shared};
    for (const auto& [rank, entries] : of_rank) all.push_back(entries);
    return all;
  }
};

struct CheckpointPart {
  std::string name;
  CheckpointScope scope = CheckpointScope::shared;
  std::function<NamedTensors()> save = {};  ///< not copied
  std::function<void(const SavedPart&)> load = {};
  std::function<void()> prepare = [] {};  ///< before any part is saved or loaded, on every rank
  DistributedOptimizer* wrapped = nullptr;
  OptionsCopies options = {};  ///< of `wrapped`
  /// Whether its tensors, and weights, change at known times alone.
  bool can_live = true;
};

OptimizerImplementation& implementation_of(DistributedOptimizer& optimizer) {
  return *OptimizerImplementation::together({&optimizer}, "Checkpoint").front();
}

CheckpointPart wrapped_part(const Context& context, const std::string& name,
                            DistributedOptimizer& optimizer) {
  const auto implementation = [&optimizer]() -> OptimizerImplementation& {
    return implementation_of(optimizer);
  };
  CheckpointPart part{.name = name};
  if (implementation().is_sharded() && context.size() > 1) part.scope = CheckpointScope::shard;
  part.wrapped = &optimizer;
  part.can_live = implementation().changes_in_step_alone();
  part.prepare = [implementation] { implementation().complete_parameters(); };
  part.save = [implementation, name] {
    implementation().check_between_steps("save() of " + in_quotes(name));
    return state_of(implementation().optimizer(), implementation().pieces());
  };
  part.load = [implementation](const SavedPart& saved) {
    load_state(implementation().optimizer(), implementation().pieces(), saved.all());
  };
  return part;
}

CheckpointPart optimizer_part(const std::string& name, torch::optim::Optimizer& optimizer,
                              const NamedTensors& named_parameters) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& item : named_parameters) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::vector<OptimizerPiece> pieces;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end()) {
        reject("optimizer " + in_quotes(name) +
               " has a parameter that is not among named_parameters");
      }
      pieces.push_back({found->second, parameter, parameter});
    }
  }
  CheckpointPart part{.name = name};
  part.can_live = false;
  part.save = [&optimizer, pieces] { return state_of(optimizer, pieces); };
  part.load = [&optimizer, pieces](const SavedPart& saved) {
    load_state(optimizer, pieces, saved.all());
  };
  return part;
}

/// By another number of ranks it begins anew, on all of them: what ranks remember belongs together.
CheckpointPart hook_part(const Context& context, const std::string& name, GradientHook& hook) {
  CheckpointPart part{.name = name, .scope = CheckpointScope::shard};
  part.save = [&hook] { return hook.state(); };
  part.load = [&context, &hook](const SavedPart& saved) {
    const bool same_ranks = saved.of_rank.size() == static_cast<std::size_t>(context.size());
    hook.set_state(same_ranks ? saved.of_rank.at(context.rank()) : NamedTensors());
  };
  return part;
}

/// Calls `f(device's name, generator)` for LibTorch's default generators of this rank, locked.
template <class F>
void each_generator(const Context& context, const F& f) {
  const auto call = [&](const char* device, at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    f(device, generator);
  };
  call("cpu", at::globalContext().defaultGenerator(at::kCPU));
  const at::Device device = to_torch(context.device());
  if (device.is_cuda()) call("cuda", at::globalContext().defaultGenerator(device));
}

const at::Tensor& value_in(const std::string& part, const Checkpoint::Tensors& tensors) {
  const at::Tensor* const value = tensors.find(kValue);
  if (value != nullptr) return *value;
  throw Error(ErrorCode::invalid_argument, "the part has no entry " + in_quotes(kValue), -1, part);
}

/// All of them, or none where one is missing or has another shape.
void copy_into(const Checkpoint::Tensors& own, const Checkpoint::Tensors& saved) {
  const at::NoGradGuard no_grad;
  for (const auto& item : own) {
    const at::Tensor* const tensor = saved.find(item.key());
    if (tensor == nullptr || tensor->sizes() != item.value().sizes()) {
      refuse_argument("its tensor ", in_quotes(item.key()),
                      tensor == nullptr ? " is missing" : " has another shape");
    }
  }
  for (const auto& item : own) {
    at::Tensor into = item.value();
    into.copy_(saved[item.key()]);
  }
}

/// Adds the entries of all parts of this scope, with their names in a file.
void add_entries(NamedTensors& into, std::span<const CheckpointPart> parts, CheckpointScope scope,
                 const std::string& prefix = "") {
  for (const CheckpointPart& part : parts) {
    if (part.scope != scope) continue;
    for (const auto& item : part.save()) {
      into.insert(prefix + part.name + "/" + item.key(), item.value());
    }
  }
}

/// Puts a file's entries where they belong. Throws Error(invalid_argument) for a name that is none.
void take_entries(std::map<std::string, SavedPart>& parts, const NamedTensors& entries) {
  for (const auto& item : entries) {
    const auto refuse_name = [&] {
      refuse_argument("the checkpoint's entry ", in_quotes(item.key()), " has the name of no part");
    };
    std::string name = item.key();
    int rank = -1;
    if (name.starts_with(kRanks)) {
      const char* const end = name.data() + name.size();
      const auto number = std::from_chars(name.data() + kRanks.size(), end, rank);
      if (number.ec != std::errc() || number.ptr == end || *number.ptr != '/' || rank < 0) {
        refuse_name();
      }
      name.erase(0, static_cast<std::size_t>(number.ptr + 1 - name.data()));
    }
    const auto slash = name.find('/');
    if (slash == std::string::npos) refuse_name();
    SavedPart& part = parts[name.substr(0, slash)];
    NamedTensors& of = rank < 0 ? part.shared : part.of_rank[rank];
    of.insert(name.substr(slash + 1), item.value());
  }
}

constexpr const char* kWeightsFile = "weights.safetensors";
constexpr const char* kStateFile = "state.safetensors";
/// In the metadata of kStateFile: the names of all parts, as a list in JSON.
constexpr const char* kPartsKey = "parts";

std::vector<std::string> names_of(std::span<const CheckpointPart> parts) {
  std::vector<std::string> names;
  for (const CheckpointPart& part : parts) names.push_back(part.name);
  return names;
}

std::string random_save_name() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string name;
  for (int i = 0; i < 32; ++i) name.push_back(kDigits[random() % 16]);
  return name;
}

std::int64_t seconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

double seconds_since(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - time).count();
}

/// Returns the folders, one for each process that commits or has committed on this node.
std::vector<std::string> folders_of_commits() {
  std::vector<std::string> folders;
  const char* const all = std::getenv(kCommitsVariable);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(all ? all : "", ignored)) {
    folders.push_back(entry.path());
  }
  return folders;
}

/// Returns the begin of the names of this generation's folders.
std::string begin_of_commits() {
  return std::to_string(generation()) + "-";
}

/// In the names of folders of LiveMemory.
constexpr std::string_view kLiveSuffix = "-live";
/// Begin of the names of the module's weights in LiveMemory.
constexpr std::string_view kWeightsPrefix = "/";
/// Copies of more than this are not made at each commit.
constexpr std::size_t kMostCopied = std::size_t{1} << 20;

/// The entries of the files of a save.
struct SaveEntries {
  void insert(const std::string& name, const at::Tensor& tensor) {
    const bool is_weight = name.starts_with(kWeightsPrefix);
    (is_weight ? weights : state)
        .insert(is_weight ? name.substr(kWeightsPrefix.size()) : name, tensor);
  }
  void write(CheckpointFolder into, const Manifest& manifest, const Metadata& metadata,
             const std::string& complete) const {
    Bytes of_weights, of_state;
    std::vector<FileImage> files;
    if (!weights.is_empty()) {
      fill_image(of_weights, weights);
      files.push_back({kWeightsFile, of_weights});
    }
    fill_image(of_state, state, metadata);
    files.push_back({kStateFile, of_state});
    into.write(manifest, files, false, complete);
  }
  NamedTensors weights, state;
};

/// Returns the name of a tensor of all ranks that has other bytes in `b`; empty: none.
std::string first_difference(const NamedTensors& a, const NamedTensors& b) {
  for (const auto& item : a) {
    if (item.key().starts_with(kRanks)) continue;
    const at::Tensor& in_a = item.value();
    const at::Tensor* const in_b = b.find(item.key());
    if (in_b == nullptr || in_b->nbytes() != in_a.nbytes() ||
        std::memcmp(in_a.data_ptr(), in_b->data_ptr(), in_a.nbytes()) != 0) {
      return item.key();
    }
  }
  return "";
}

std::string difference_text(std::int64_t step, const std::string& who, const std::string& name) {
  return c10::str("after step ", step, " ", who, " had different values of ", in_quotes(name),
                  "; all ranks must begin with the same (broadcast_parameters()) and change them "
                  "alike");
}

/// Makes saves of what processes of earlier generations on this node have left in LiveMemory: a
/// shard for each copy, and a main part for each commit by which a process has all tensors whole.
/// By another number of `ranks` than wrote it, what small ranks other than 0 had is left out: its
/// host may be lost. Returns in which tensor processes differ; empty: in none.
std::string save_what_lives(int ranks) {
  std::map<std::string, std::pair<int, NamedTensors>> mains;  // with their rank
  for (const std::string& folder : folders_of_commits()) {
    const std::string name = std::filesystem::path(folder).filename();
    if (name.starts_with(begin_of_commits())) continue;
    const auto live = take_live(folder);
    if (!live) continue;
    std::string before;
    for (const LiveContents::Copy& copy : live->copies) {
      Manifest manifest = live->training.manifest;
      manifest.save = c10::str(name.substr(0, name.find('-')), "-", copy.commit.count);
      manifest.step = copy.commit.step;
      manifest.epoch = copy.commit.epoch;
      manifest.time = copy.commit.time;
      SaveEntries main, shard;
      for (const auto& item : copy.entries) shard.insert(item.key(), item.value());
      bool has_own = false;
      for (const auto& item : live->tensors) {
        const bool is_own = item.key().starts_with(kRanks);
        has_own |= is_own;
        if (copy.has_tensors) (is_own ? shard : main).insert(item.key(), item.value());
      }
      if (manifest.shards != ranks && !has_own) manifest.shards = 1;
      if (manifest.shard < manifest.shards && (copy.has_tensors || !has_own)) {
        shard.write(CheckpointFolder(c10::str(folder, "/rank-", manifest.shard)), manifest, {},
                    before);
        before = manifest.save;
      }
      if (!copy.has_tensors) continue;
      const auto [first, is_new] = mains.try_emplace(manifest.save, manifest.shard, live->tensors);
      if (!is_new) {
        const auto& [rank, tensors] = first->second;
        const std::string tensor = first_difference(tensors, live->tensors);
        if (tensor.empty()) continue;
        const auto who = c10::str("the lost job's ranks ", rank, " and ", manifest.shard);
        return difference_text(manifest.step, who, tensor);
      }
      manifest.shard = -1;
      main.write(CheckpointFolder(folder), manifest,
                 {{kPartsKey, nlohmann::json(live->training.parts).dump()}}, "");
    }
  }
  return "";
}

/// Removes what earlier generations have committed on this node.
void remove_earlier_commits() {
  for (const std::filesystem::path folder : folders_of_commits()) {
    std::error_code ignored;
    if (folder.filename().native().starts_with(begin_of_commits())) continue;
    std::filesystem::remove_all(folder, ignored);
  }
}

/// Returns the contents of this node's folder, with those of its memory.
FolderContents contents_of_node(const std::string& folder, bool with_memory) {
  FolderContents all = contents_of_folder(folder);
  if (!with_memory) return all;
  for (const std::string& commits : folders_of_commits()) {
    FolderContents contents = contents_of_folder(commits);
    for (FoundPart& part : contents.found) {
      part.in_memory = true;
      part.folder = std::filesystem::path(commits).filename() / part.folder;
      all.found.push_back(std::move(part));
    }
    all.refused.insert(all.refused.end(), contents.refused.begin(), contents.refused.end());
  }
  return all;
}

/// The checkpoints of all ranks, the same on each: in local rank 0's `folder` on every node, and in
/// its memory. Collective.
FolderContents look_on_all_ranks(const Context& context, const std::string& folder,
                                 bool with_memory, std::chrono::milliseconds timeout) {
  nlohmann::json own;
  if (context.local_rank() == 0) own = contents_of_node(folder, with_memory);
  barrier(context, {.name = "hora.checkpoint.looked", .timeout = timeout});
  FolderContents all;
  const auto reports = allgather_object(context, own, {.name = "hora.checkpoint.found"});
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].is_null()) continue;
    auto contents = reports[rank].get<FolderContents>();
    for (FoundPart& part : contents.found) {
      part.rank = static_cast<int>(rank);
      all.found.push_back(std::move(part));
    }
    for (const std::string& why : contents.refused) {
      all.refused.push_back(c10::str("rank ", rank, ", ", why));
    }
  }
  return all;
}

[[noreturn]] void refuse_all(const std::string& folder, const std::string& slot,
                             const FolderContents& all) {
  std::string text = in_quotes(folder + (slot.empty() ? "" : "/" + slot)) +
                     " holds no checkpoint that is complete and undamaged on any rank";
  for (const std::string& why : all.refused) text += "; " + why;
  for (const FoundPart& part : all.found) {
    if (part.manifest.shard >= 0 || (!slot.empty() && part.folder != slot)) continue;
    const auto missing = missing_shards(part.manifest, all.found);
    if (missing.empty()) continue;
    text += c10::str("; of ", in_quotes(part.folder), " of rank ", part.rank,
                     " no rank has the shards that ", named_ranks(missing), " wrote");
  }
  reject(text + ". Name another folder or slot, or remove this one to begin anew");
}

/// Contents of a checkpoint, the same on every rank.
struct Loaded {
  Manifest manifest = {};  ///< of the main part
  std::string from = {};   ///< "last" of rank 1, for messages
  bool from_memory = false;
  std::int64_t latest = 0;  ///< time of the latest save of all that were found
  std::optional<NamedTensors> weights = {};
  std::set<std::string> names =
      {};  ///< of the parts that were saved, also of those without entries
  std::map<std::string, SavedPart> parts = {};
};

/// The saves that go into one folder, of which one may be under way.
struct Saves {
  Saves(const Context& context, const std::string& folder, bool is_per_node,
        bool reuses_files = false)
      : per_node(is_per_node),
        main_folder(folder, reuses_files),
        shard_folder(folder + "/rank-" + std::to_string(context.rank())) {}

  /// Waits for the thread that writes: the images are not in use any more.
  void finish() {
    if (!task.valid()) return;
    try {
      task.get();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }

  const bool per_node;
  NamedTensors shared;
  Bytes own_image;  ///< this rank's own parts
  Bytes weights_image;
  Bytes state_image;
  CheckpointFolder main_folder;
  CheckpointFolder shard_folder;
  std::string complete;    ///< the newest save that all ranks have completely
  std::string pending;     ///< the one that is being written, or whose outcome is not exchanged
  std::int64_t step = 0;   ///< of `pending`
  std::string failure;     ///< of `pending`, on this rank
  double seconds = 0;      ///< that `pending` has taken from this rank, beside waiting for others
  std::future<void> task;  // last: destroyed first
};

/// Share of the time that commits may take.
constexpr double kShareOfCommits = 0.01;
/// Time of the collectives of a commit.
constexpr double kExchangeSeconds = 1e-3;
/// An interval is at most as many times the one before.
constexpr std::int64_t kMostGrowth = 4;

}  // namespace

/// Copies, exchanges what must be, and writes in the background; loads.
struct Checkpoint::State {
  State(const Context& given, const CheckpointOptions& given_options)
      : context(given), options(given_options), files(context, options.folder, options.per_node) {
    if (options.timeout.count() <= 0) {
      reject(c10::str("the timeout is ", options.timeout.count(), " ms; expected more than 0"));
    }
    if (std::getenv(kCommitsVariable) != nullptr) {
      memory.emplace(context, own_commits(), /*is_per_node=*/true, /*reuses_files=*/true);
    }
    if (context.local_rank() != 0) return;
    for (const FoundPart& one : contents_of_node(options.folder, memory.has_value()).found) {
      latest = std::max(latest, one.manifest.time);
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (live) call_before_change({});
    files.finish();
    if (!files.failure.empty()) {
      log_warning(
          c10::str("Checkpoint: the save of step ", files.step, " has failed: ", files.failure));
    }
  }

  bool writes_main(const Saves& saves) const {
    return saves.per_node ? context.local_rank() == 0 : context.rank() == 0;
  }

  void add(CheckpointPart part) {
    check_not_begun();
    if (part.name.empty() || part.name.find('/') != std::string::npos || part.name == "ranks") {
      reject("a part cannot have the name " + in_quotes(part.name) +
             "; expected a text without '/' other than \"\" and \"ranks\"");
    }
    if (std::ranges::find(parts, part.name, &CheckpointPart::name) != parts.end()) {
      reject("there is a part " + in_quotes(part.name) + " already");
    }
    parts.push_back(std::move(part));
  }

  void check_not_begun() const {
    if (!begun) return;
    throw Error(ErrorCode::invalid_use,
                "Checkpoint: a part was added after save() or load(); add all of them before");
  }

  bool has(CheckpointScope scope) const {
    return std::ranges::find(parts, scope, &CheckpointPart::scope) != parts.end();
  }
  /// Whether ranks have parts of their own, and whether each writes its own.
  bool has_own() const { return has(CheckpointScope::each_rank) || has(CheckpointScope::shard); }
  bool has_shards(const Saves& saves) const {
    return has(CheckpointScope::shard) && !saves.per_node;
  }

  void collect(Saves& saves) {
    for (const CheckpointPart& part : parts) part.prepare();
    if (has_own()) {
      const std::string prefix = c10::str(kRanks, context.rank(), '/');
      NamedTensors own;
      add_entries(own, parts, CheckpointScope::each_rank, prefix);
      add_entries(own, parts, CheckpointScope::shard, prefix);
      fill_image(saves.own_image, own);
    }
    if (!writes_main(saves)) return;
    saves.shared = NamedTensors();
    add_entries(saves.shared, parts, CheckpointScope::shared);
    check_can_fill(saves.shared);
    // As PyTorch's own files say, and some of their readers want.
    if (module != nullptr) fill_image(saves.weights_image, weights_of(*module), {{"format", "pt"}});
  }

  bool is_memory(const Saves& saves) const { return memory && &saves == &*memory; }

  /// Describes a save, or nothing. Returns rank 0's on every rank, but for the latest time and the
  /// longest interval. Throws the same Error on every rank where `problem`, or the save before, has
  /// failed on any; memory that has failed is given up.
  nlohmann::json exchange(Saves& saves, nlohmann::json own, const std::string& problem) {
    saves.finish();
    const std::int64_t step_before = saves.step;
    const std::string before = std::exchange(saves.pending, "");
    if (!before.empty()) {
      barrier(context, {.name = "hora.checkpoint.written", .timeout = options.timeout});
    }
    own["failure"] = std::exchange(saves.failure, "");
    own["problem"] = problem;
    auto reports = allgather_object(context, own, {.name = "hora.checkpoint.save"});
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      const auto& report = reports[rank];
      const auto on_rank = [&](const std::string& what, const std::string& why) {
        reject(c10::str(what, " on rank ", rank, ": ", why), static_cast<int>(rank));
      };
      if (const auto why = report.at("failure").get<std::string>(); !why.empty()) {
        if (is_memory(saves)) return give_up_memory(rank, step_before, why);
        on_rank(c10::str("the save of step ", step_before, " has failed"),
                why + "; free space or repair the folder, and save again" +
                    (saves.complete.empty() ? "" : ". The one before is still there"));
      }
      if (const auto why = report.at("problem").get<std::string>(); !why.empty()) {
        on_rank("save() cannot copy what it is to save", why);
      }
      if (report.at("parts") != reports[0].at("parts")) {
        throw Error(
            ErrorCode::mismatch,
            c10::str("Checkpoint: ranks have added different parts: rank 0 ",
                     reports[0].at("parts").dump(), ", rank ", rank, " ", report.at("parts").dump(),
                     "; add the same ones in the same order on every rank"));
      }
      reports[0]["time"] = std::max(reports[0]["time"], report.at("time"));
      reports[0]["interval"] = std::max(reports[0]["interval"], report.at("interval"));
      if (report.value("gives_way", false)) reports[0]["gives_way"] = true;
    }
    if (!before.empty()) {
      saves.complete = before;
      note_resumable(context, step_before);
    }
    return reports[0];
  }

  nlohmann::json give_up_memory(std::size_t rank, std::int64_t step, const std::string& why) {
    warn(c10::str("commit() of step ", step, " on rank ", rank, ": ", why,
                  "; from now on the job can go on from files alone"));
    memory.reset();
    return {};
  }

  void fill_state(Saves& saves, std::vector<Bytes> of_ranks) const {
    NamedTensors state = std::exchange(saves.shared, NamedTensors());
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const auto contents = contents_of(std::move(of_ranks[rank]));
      if (!contents) {
        throw Error(ErrorCode::transport,
                    c10::str("what rank ", rank, " has sent cannot be read: ", contents.error()));
      }
      state.update(contents->tensors);
    }
    fill_image(saves.state_image, state, {{kPartsKey, nlohmann::json(names_of(parts)).dump()}});
  }

  Manifest manifest_of(const CheckpointPosition& position) const {
    Manifest manifest;
    manifest.step = position.step;
    manifest.epoch = position.epoch;
    for (int node = 0; node < context.cross_size(); ++node) {
      manifest.ranks_of_nodes.push_back(static_cast<int>(context.ranks_of_node(node).size()));
    }
    return manifest;
  }

  /// `wishes`: whether it is the best one, the interval until the next one, whether the job gives
  /// way. Returns those that all agree on; nothing where memory has been given up.
  nlohmann::json save(Saves& saves, const CheckpointPosition& position, nlohmann::json wishes) {
    saves.finish();
    const auto begin = std::chrono::steady_clock::now();
    std::string problem;
    try {
      collect(saves);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    Manifest manifest = manifest_of(position);
    manifest.save = random_save_name();
    manifest.shards = has_shards(saves) ? context.size() : 0;
    const double collecting = seconds_since(begin);
    wishes["parts"] = names_of(parts);
    wishes["manifest"] = manifest;
    wishes["time"] = std::max(seconds_since_1970(), latest + 1);
    auto header = exchange(saves, std::move(wishes), problem);
    if (header.empty()) return header;
    const auto exchanged = std::chrono::steady_clock::now();
    std::vector<Bytes> of_ranks;
    if (has_own() && !has_shards(saves)) {
      of_ranks = allgather_object(context, std::span<const std::byte>(saves.own_image),
                                  {.name = "hora.checkpoint.ranks"});
    }
    manifest = header.at("manifest").get<Manifest>();
    manifest.time = latest = header.at("time").get<std::int64_t>();
    saves.pending = manifest.save;
    saves.step = manifest.step;
    try {
      if (writes_main(saves)) fill_state(saves, std::move(of_ranks));
      saves.seconds = collecting + seconds_since(exchanged);
      const bool is_best = header.at("best").get<bool>();
      saves.task =
          std::async(std::launch::async, [this, &saves, manifest, is_best, kept = saves.complete] {
            const auto start = std::chrono::steady_clock::now();
            write(saves, manifest, is_best, kept);
            saves.seconds += seconds_since(start);
          });
    } catch (const std::exception& error) {
      saves.failure = error.what();  // the other ranks learn of it in the next exchange
    }
    return header;
  }

  void write(Saves& saves, const Manifest& manifest, bool best, const std::string& kept) const {
    if (has_shards(saves)) {
      Manifest of_shard = manifest;
      of_shard.shard = context.rank();
      const FileImage image{kStateFile, saves.own_image};
      saves.shard_folder.write(of_shard, {&image, 1}, best, kept);
    }
    if (!writes_main(saves)) return;
    std::vector<FileImage> images;
    if (module != nullptr) images.push_back({kWeightsFile, saves.weights_image});
    images.push_back({kStateFile, saves.state_image});
    saves.main_folder.write(manifest, images, best, kept);
    if (is_memory(saves)) keep_reserve(own_commits(), reserve());
  }

  /// Returns false where memory has been given up.
  bool wait(Saves& saves) {
    nlohmann::json nothing{{"parts", nlohmann::json::array()}, {"time", 0}, {"interval", 0}};
    return !exchange(saves, std::move(nothing), "").empty();
  }

  bool can_live() const {
    return std::ranges::all_of(parts, &CheckpointPart::can_live) &&
           std::ranges::any_of(parts, &CheckpointPart::wrapped) &&
           context.device().kind == DeviceKind::cpu;
  }

  void call_before_change(const std::function<void()>& call) const {
    for (const CheckpointPart& part : parts) {
      if (part.wrapped != nullptr) implementation_of(*part.wrapped).set_before_change(call);
    }
  }

  /// Whether this rank keeps the part for all, or its own.
  bool keeps(const CheckpointPart& part) const {
    return part.scope != CheckpointScope::shared || context.rank() == 0;
  }
  std::string prefix_of(const CheckpointPart& part) const {
    return (part.scope == CheckpointScope::shared ? "" : c10::str(kRanks, context.rank(), '/')) +
           part.name + "/";
  }

  /// Returns the entries that each commit copies.
  NamedTensors entries_to_copy() {
    NamedTensors entries;
    for (CheckpointPart& part : parts) {
      if (!keeps(part)) continue;
      const std::string prefix = prefix_of(part);
      for (const auto& item : part.wrapped != nullptr
                                  ? part.options.of(implementation_of(*part.wrapped).optimizer())
                                  : part.save()) {
        entries.insert(prefix + item.key(), item.value());
      }
    }
    return entries;
  }

  /// A hash of where all lies that LiveMemory is made with.
  std::size_t addresses() const {
    std::size_t hash = 0;
    const auto add = [&](const at::Tensor& tensor) {
      hash = c10::hash_combine(hash, std::hash<const void*>()(tensor.data_ptr()));
    };
    for (const at::Tensor& parameter : parameters) add(parameter);
    for (const at::Tensor& buffer : buffers) add(buffer);
    for (const CheckpointPart& part : parts) {
      if (part.wrapped == nullptr) continue;
      hash =
          c10::hash_combine(hash, addresses_of_state(implementation_of(*part.wrapped).optimizer()));
    }
    return hash;
  }

  void make_live(const CheckpointPosition& position) {
    NamedTensors tensors, values;
    parameters.clear();
    buffers.clear();
    if (module != nullptr) {
      for (const auto& item : module->named_parameters()) {
        tensors.insert(c10::str(kWeightsPrefix, item.key()), item.value());
        parameters.push_back(item.value());
      }
      for (const auto& item : module->named_buffers()) {
        if (!item.value().defined()) continue;
        if (!item.value().is_contiguous()) refuse_tensor(item.key(), "its memory has gaps");
        buffers.push_back(item.value());
        if (context.rank() != 0) continue;
        values.insert(c10::str(kWeightsPrefix, item.key()), item.value());
      }
    }
    for (const CheckpointPart& part : parts) {
      if (part.wrapped == nullptr) continue;
      OptimizerImplementation& optimizer = implementation_of(*part.wrapped);
      const OptimizerState state = parts_of_state(optimizer.optimizer(), optimizer.pieces());
      for (const auto& item : state.tensors) {
        tensors.insert(prefix_of(part) + item.key(), item.value());
      }
      if (!keeps(part)) continue;
      for (const auto& item : state.numbers) {
        values.insert(prefix_of(part) + item.key(), item.value());
      }
    }
    LiveTraining training{manifest_of(position), names_of(parts)};
    training.manifest.shards = context.size();
    training.manifest.shard = context.rank();
    live.reset();
    live.emplace(own_commits() + std::string(kLiveSuffix), training, tensors, values,
                 2 * live_image.size() + 4096, reserve());
    live_addresses = addresses();
    call_before_change([this] { change_begins(); });
  }

  /// Keeps the position at each commit, without a copy of what is large.
  void keep_alive(const CheckpointPosition& position) {
    if (!lives) return;
    try {
      for (const CheckpointPart& part : parts) part.prepare();
      const NamedTensors copied = entries_to_copy();
      std::size_t bytes = 0;
      for (const auto& item : copied) bytes += item.value().nbytes();
      if (bytes > kMostCopied) return stop_living();
      fill_image(live_image, copied);
      const std::int64_t time = std::max(seconds_since_1970(), latest + 1);
      const LiveCommit commit{static_cast<std::uint64_t>(commits), position.step, position.epoch,
                              time};
      const auto keep = [&] {
        return live && live_addresses == addresses() && live->keep(commit, live_image);
      };
      if (keep() || commits < next_live) return;
      next_live = 2 * commits;  // where tensors move again and again
      make_live(position);
      keep();
    } catch (const std::exception& error) {
      stop_living();
      log_warning(c10::str("Checkpoint: commit() of step ", position.step, " on rank ",
                           context.rank(), " cannot keep tensors in memory: ", error.what(),
                           "; a loss costs the steps since the last copy of them"));
    }
  }

  void stop_living() {
    if (live) call_before_change({});
    live.reset();
    lives = false;
  }

  void change_begins() {
    const std::string changed = live ? live->change_begins() : "";
    if (changed.empty()) return;
    lives = false;
    log_warning(c10::str("Checkpoint: tensor ", in_quotes(changed), " on rank ", context.rank(),
                         " was changed between commit() and step(): after a loss the training "
                         "would have gone on from neither; call commit() after the last change"));
  }

  /// Shared memory that a generation of as many ranks needs to begin, were all on this host.
  std::uint64_t reserve() const {
    return kSharedMemoryOfRank * static_cast<std::uint64_t>(context.size());
  }

  std::string own_commits() const {
    return c10::str(std::getenv(kCommitsVariable), "/", begin_of_commits(), ::getpid());
  }

  /// Keeps a position, and copies of all parts in memory as often as costs kShareOfCommits of the
  /// time.
  void commit(const CheckpointPosition& position) {
    if (std::getenv(kCommitsVariable) == nullptr) return;
    if (++commits == 1) lives = can_live();
    keep_alive(position);
    note_resumable(context, position.step);
    if (!memory || --until_commit > 0) return;
    memory->finish();
    const double step_seconds = seconds_since(committed) / static_cast<double>(commit_interval);
    const double cost = (memory->seconds + kExchangeSeconds) / kShareOfCommits;
    const auto wanted = memory->pending.empty()
                            ? 1
                            : static_cast<std::int64_t>(std::min(cost / step_seconds, 1e9)) + 1;
    // Each node keeps all, but buffers are rank 0's, as in files.
    if (module != nullptr && context.cross_size() > 1) broadcast_buffers(context, *module, 0);
    nlohmann::json wishes{{"best", false},
                          {"interval", std::min(wanted, kMostGrowth * commit_interval)},
                          {"gives_way", is_asked_to_give_way()}};
    const auto agreed = save(*memory, position, std::move(wishes));
    if (agreed.empty()) return;
    if (agreed.at("gives_way").get<bool>() && wait(*memory)) give_way();
    if (!memory) return;
    if (!memory->complete.empty() && context.local_rank() == 0) remove_earlier_commits();
    until_commit = commit_interval = agreed.at("interval").get<std::int64_t>();
    committed = std::chrono::steady_clock::now();
  }

  /// Reads the part's files on its rank for all, and adds their contents. Returns what is wrong
  /// with one, the same on every rank; empty: nothing.
  std::string read(const std::string& folder, const FoundPart& part, Loaded& into) const {
    for (const ManifestFile& file : part.manifest.files) {
      tl::expected<Bytes, std::string> bytes;
      if (context.rank() == part.rank) {
        const std::string& above = part.in_memory ? std::getenv(kCommitsVariable) : folder;
        bytes = read_checked(above + "/" + part.folder, file);
      }
      barrier(context, {.name = "hora.checkpoint.read", .timeout = options.timeout});
      const std::string problem =
          broadcast_object(context, std::string_view(bytes ? "" : bytes.error()),
                           {.name = "hora.checkpoint.problem", .root = part.rank});
      if (!problem.empty()) return problem;
      bytes = broadcast_object(context, std::span<const std::byte>(*bytes),
                               {.name = "hora.checkpoint.file", .root = part.rank});
      auto contents = contents_of(std::move(*bytes));
      const std::string place = in_quotes(part.folder + "/" + file.name) + ": ";
      if (!contents) return place + contents.error();
      try {
        if (file.name == kWeightsFile) {
          if (!into.weights) into.weights.emplace();
          into.weights->update(contents->tensors);
        }
        if (file.name != kStateFile) continue;
        take_entries(into.parts, contents->tensors);
        if (part.manifest.shard >= 0) continue;
        nlohmann::json::parse(contents->metadata[kPartsKey]).get_to(into.names);
      } catch (const std::exception& error) {
        return place + error.what();
      }
    }
    return "";
  }

  void warn(const std::string& text) const {
    if (context.rank() == 0) log_warning("Checkpoint: " + text);
  }

  /// Throws the same Error(invalid_argument) on every rank where another host has other
  /// weights in a copy of `main`.
  static void check_same_weights(const FoundPart& main, const FoundPart& other) {
    if (!main.in_memory || !other.in_memory || other.manifest.shard >= 0 ||
        other.manifest.save != main.manifest.save) {
      return;
    }
    const ManifestFile& file = main.manifest.files.front();
    if (file.name != kWeightsFile || file == other.manifest.files.front()) return;
    const auto who = c10::str("the hosts of ranks ", main.rank, " and ", other.rank);
    reject(difference_text(main.manifest.step, who, kWeightsFile), other.rank);
  }

  /// Finds the newest complete checkpoint on any rank, slot `slot` where not empty, and gives what
  /// it holds to all; every file has been read and checked. What is refused is named in a warning.
  /// Nothing where there is no checkpoint at all. Throws the same Error(invalid_argument) on every
  /// rank where there is none that is complete and undamaged. Collective.
  std::optional<Loaded> load_newest(const std::string& folder, const std::string& slot,
                                    bool with_memory) const {
    FolderContents all = look_on_all_ranks(context, folder, with_memory, options.timeout);
    const auto warn_of = [&](const std::string& refused) {
      warn("refused: " + refused + ". The next one that is complete is taken");
    };
    for (const std::string& why : all.refused) warn_of(why);
    Loaded loaded;
    for (const FoundPart& part : all.found) {
      loaded.latest = std::max(loaded.latest, part.manifest.time);
    }
    for (;;) {
      const auto set = newest_complete(all.found, slot);
      if (set.empty()) break;
      const FoundPart& main = set.front();
      for (const FoundPart& other : all.found) check_same_weights(main, other);
      loaded = {.latest = loaded.latest};
      loaded.manifest = main.manifest;
      loaded.from_memory = main.in_memory;
      loaded.from = c10::str(main.in_memory ? "commit() " : "", in_quotes(main.folder), " of rank ",
                             main.rank);
      const auto damaged = std::ranges::find_if(set, [&](const FoundPart& part) {
        const std::string problem = read(folder, part, loaded);
        if (problem.empty()) return false;
        all.refused.push_back(c10::str("rank ", part.rank, ", ", problem));
        warn_of(all.refused.back());
        return true;
      });
      if (damaged == set.end()) return loaded;
      std::erase(all.found, *damaged);
    }
    // Memory may hold a job's first step, which not all ranks have made.
    const auto is_main = [](const FoundPart& part) {
      return part.manifest.shard < 0 && !part.in_memory;
    };
    if (slot.empty() && all.refused.empty() && std::ranges::none_of(all.found, is_main)) {
      return std::nullopt;
    }
    refuse_all(folder, slot, all);
  }

  /// Names what the checkpoint lacks; empty: nothing.
  std::string missing(const Loaded& loaded) const {
    std::string names;
    const auto add_name = [&](const std::string& name) {
      names += (names.empty() ? "" : ", ") + in_quotes(name);
    };
    if (module != nullptr && !loaded.weights) add_name(kWeightsFile);
    for (const CheckpointPart& part : parts) {
      if (!loaded.names.contains(part.name)) add_name(part.name);
    }
    return names;
  }

  void apply(Loaded& loaded) {
    if (module != nullptr && loaded.weights) load_weights(*module, *loaded.weights);
    for (const CheckpointPart& part : parts) {
      if (!loaded.names.contains(part.name)) continue;
      try {
        part.load(loaded.parts[part.name]);
      } catch (const std::exception& error) {
        refuse_argument("part ", in_quotes(part.name), " does not fit: ", error.what());
      }
    }
  }

  /// Throws what is wrong on any rank, on every rank.
  void agree(const std::string& problem) const {
    const auto problems =
        allgather_object(context, std::string_view(problem), {.name = "hora.checkpoint.loaded"});
    for (std::size_t rank = 0; rank < problems.size(); ++rank) {
      if (problems[rank].empty()) continue;
      reject(c10::str("load() on rank ", rank, ": ", problems[rank]), static_cast<int>(rank));
    }
  }

  void take_what_lives() const {
    std::string problem;
    try {
      if (context.local_rank() == 0) problem = save_what_lives(context.size());
    } catch (const std::exception& error) {
      log_warning(c10::str("Checkpoint: on rank ", context.rank(),
                           " what its ranks kept in memory cannot be used: ", error.what(),
                           "; the last copy is taken"));
    }
    // Nodes of one host see the same folders.
    barrier(context, {.name = "hora.checkpoint.lives", .timeout = options.timeout});
    agree(problem);
  }

  /// `first`: before all saves and commits: a later generation goes on from the job's own, in
  /// memory or files, whatever is asked for.
  std::optional<CheckpointPosition> load(const CheckpointLoadOptions& from, bool first) {
    wait(files);
    for (const CheckpointPart& part : parts) part.prepare();
    std::optional<Loaded> loaded;
    if (first && memory && generation() > 1) {
      take_what_lives();
      loaded = load_newest(options.folder, "", true);
    }
    if (!loaded) {
      loaded = load_newest(from.folder.empty() ? options.folder : from.folder, from.slot, false);
    }
    note_resumable(context, loaded ? loaded->manifest.step : 0);
    if (!loaded) return std::nullopt;
    std::string problem;
    if (const std::string names = missing(*loaded); !names.empty()) {
      const std::string text = "the checkpoint of " + loaded->from + " lacks " + names;
      if (from.allow_missing_parts) {
        warn(text + ": it stays as it is");
      } else {
        problem = text + "; add what it holds, or set allow_missing_parts";
      }
    }
    try {
      if (problem.empty()) apply(*loaded);
    } catch (const std::exception& error) {
      problem = "the checkpoint of " + loaded->from + ": " + error.what();
    }
    agree(problem);
    if (!loaded->from_memory) files.complete = loaded->manifest.save;
    latest = std::max(latest, loaded->latest);
    return CheckpointPosition{loaded->manifest.step, loaded->manifest.epoch};
  }

  const Context& context;
  const CheckpointOptions options;
  std::vector<CheckpointPart> parts;
  torch::nn::Module* module = nullptr;
  bool begun = false;

  std::int64_t latest = 0;  ///< time of the latest save, those found in the folder included

  std::int64_t commit_interval = 1;                 ///< commits from one that is kept to the next
  std::int64_t until_commit = 1;                    ///< commits until the next that is kept
  std::chrono::steady_clock::time_point committed;  ///< when the last one was kept

  std::int64_t commits = 0;    ///< all of them
  bool lives = false;          ///< whether `live` is tried
  std::int64_t next_live = 1;  ///< the commit at which `live` may be made anew
  Bytes live_image;
  std::vector<at::Tensor> parameters, buffers;  ///< of the module
  std::size_t live_addresses = 0;
  std::optional<LiveMemory> live;

  Saves files;
  std::optional<Saves> memory;  ///< of elastic jobs
};

Checkpoint::Checkpoint(const Context& context, const CheckpointOptions& options)
    : state_(std::make_unique<State>(context, options)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

void Checkpoint::add_weights(torch::nn::Module& module) {
  state_->check_not_begun();
  if (state_->module != nullptr) {
    reject(
        "it has the weights of a module already; add a second one's by "
        "add_tensors(name, weights_of(module))");
  }
  state_->module = &module;
}

void Checkpoint::add_optimizer(const std::string& name, DistributedOptimizer& optimizer) {
  state_->add(wrapped_part(state_->context, name, optimizer));
}

void Checkpoint::add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer,
                               const Tensors& named_parameters) {
  state_->add(optimizer_part(name, optimizer, named_parameters));
}

void Checkpoint::add_scaler(const std::string& name, GradScaler& scaler) {
  const auto save = [&scaler] {
    const GradScalerState now = scaler.state();
    return Tensors{{"scale", at::scalar_tensor(now.scale, at::kDouble)},
                   {"finite_steps", at::scalar_tensor(now.finite_steps, at::kLong)}};
  };
  const auto load = [&scaler](const Tensors& saved) {
    scaler.set_state({saved["scale"].item<double>(),
                      static_cast<int>(saved["finite_steps"].item<std::int64_t>())});
  };
  add_state(name, save, load);
}

void Checkpoint::add_hook(const std::string& name, GradientHook& hook) {
  state_->add(hook_part(state_->context, name, hook));
}

void Checkpoint::add_random_state() {
  const Context& context = state_->context;
  const auto save = [&context] {
    Tensors states;
    each_generator(context, [&](const char* device, const at::Generator& generator) {
      states.insert(device, generator.get_state());
    });
    return states;
  };
  const auto load = [&context](const Tensors& states) {
    each_generator(context, [&](const char* device, at::Generator& generator) {
      if (const at::Tensor* state = states.find(device)) generator.set_state(state->clone());
    });
  };
  add_state("random_state", save, load, CheckpointScope::each_rank);
}

void Checkpoint::add_tensors(const std::string& name, const Tensors& tensors,
                             CheckpointScope scope) {
  add_state(
      name, [tensors] { return tensors; },
      [tensors](const Tensors& saved) { copy_into(tensors, saved); }, scope);
}

void Checkpoint::add_number(const std::string& name, std::int64_t& number, CheckpointScope scope) {
  add_state(
      name,
      [&number] {
        return Tensors{{kValue, at::scalar_tensor(number, at::kLong)}};
      },
      [&number, name](const Tensors& saved) {
        number = value_in(name, saved).item<std::int64_t>();
      },
      scope);
}

void Checkpoint::add_number(const std::string& name, double& number, CheckpointScope scope) {
  add_state(
      name,
      [&number] {
        return Tensors{{kValue, at::scalar_tensor(number, at::kDouble)}};
      },
      [&number, name](const Tensors& saved) { number = value_in(name, saved).item<double>(); },
      scope);
}

void Checkpoint::add_text(const std::string& name, const std::function<std::string()>& save,
                          const std::function<void(const std::string&)>& load,
                          CheckpointScope scope) {
  add_state(
      name,
      [save] {
        return Tensors{{kValue, text_tensor(save())}};
      },
      [load, name](const Tensors& saved) { load(text_of(value_in(name, saved))); }, scope);
}

/// A rank's own part is loaded from that rank's entries; where it has saved none, it is left alone.
void Checkpoint::add_state(const std::string& name, const std::function<Tensors()>& save,
                           const std::function<void(const Tensors&)>& load, CheckpointScope scope) {
  const int rank = state_->context.rank();
  const auto load_own = [rank, scope, load](const SavedPart& saved) {
    if (scope == CheckpointScope::shared) return load(saved.shared);
    const auto found = saved.of_rank.find(rank);
    if (found != saved.of_rank.end()) load(found->second);
  };
  state_->add({.name = name, .scope = scope, .save = save, .load = load_own});
}

void Checkpoint::save(const CheckpointPosition& position, const CheckpointSaveOptions& options) {
  if (position.step < 0 || position.epoch < 0) {
    reject(c10::str("save() of step ", position.step, " of epoch ", position.epoch,
                    "; expected 0 or more"));
  }
  if (state_->options.folder.empty()) {
    reject("save() needs a folder; give CheckpointOptions::folder");
  }
  state_->begun = true;
  state_->save(state_->files, position, {{"best", options.best}, {"interval", 0}});
  if (!state_->options.background) wait();
}

void Checkpoint::commit(const CheckpointPosition& position) {
  state_->begun = true;
  state_->commit(position);
}

std::optional<CheckpointPosition> Checkpoint::load(const CheckpointLoadOptions& options) {
  const std::string& slot = options.slot;
  if (!slot.empty() && slot != kLast && slot != kPrevious && slot != kBest) {
    reject("there is no slot " + in_quotes(slot) +
           "; expected \"last\", \"previous\", \"best\" or \"\"");
  }
  return state_->load(options, !std::exchange(state_->begun, true));
}

void Checkpoint::wait() {
  state_->wait(state_->files);
}

}  // namespace hora
