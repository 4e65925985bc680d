#include "frameworks/torch/checkpoint/checkpoint_writer.h"

#include <hora/error.h>
#include <hora/objects_json.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "core/diagnostics.h"

namespace hora::internal {
namespace {

std::string random_save_name() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string name;
  for (int i = 0; i < 32; ++i) name.push_back(kDigits[random() % 16]);
  return name;
}

std::int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<std::string> names_of(std::span<const CheckpointPart> parts) {
  std::vector<std::string> names;
  for (const CheckpointPart& part : parts) names.push_back(part.name);
  return names;
}

std::vector<int> ranks_of_nodes(const Context& context) {
  std::vector<int> ranks;
  for (int node = 0; node < context.cross_size(); ++node) {
    ranks.push_back(static_cast<int>(context.ranks_of_node(node).size()));
  }
  return ranks;
}

}  // namespace

std::string shard_folder(const std::string& folder, int rank) {
  return folder + "/rank-" + std::to_string(rank);
}

/// What identifies a save; rank 0's on every rank.
struct CheckpointWriter::Header {
  std::string save;
  std::int64_t time = 0;
};

CheckpointWriter::CheckpointWriter(const Context& context, const CheckpointOptions& options)
    : context_(context),
      options_(options),
      writes_main_(options.per_node ? context.local_rank() == 0 : context.rank() == 0),
      main_folder_(options.folder),
      shard_folder_(shard_folder(options.folder, context.rank())) {}

CheckpointWriter::~CheckpointWriter() {
  const std::string failure = task_.wait();
  if (!failure.empty()) {
    log_warning("Checkpoint: the save of step " + std::to_string(step_) + " has failed: " +
                failure);
  }
}

void CheckpointWriter::collect(std::span<const CheckpointPart> parts,
                               const torch::nn::Module* module) {
  for (const CheckpointPart& part : parts) part.prepare();
  has_shards_ = has_gathered_ = false;
  for (const CheckpointPart& part : parts) {
    const bool shard = part.scope == CheckpointScope::shard;
    has_shards_ = has_shards_ || (shard && !options_.per_node);
    has_gathered_ = has_gathered_ || part.scope == CheckpointScope::each_rank ||
                    (shard && options_.per_node);
  }
  if (has_gathered_) {
    NamedTensors own = entries_of(parts, CheckpointScope::each_rank);
    if (options_.per_node) own.update(entries_of(parts, CheckpointScope::shard));
    of_rank_.fill(own);
  }
  if (has_shards_) {
    NamedTensors own;
    add_entries_of_rank(own, context_.rank(), entries_of(parts, CheckpointScope::shard));
    shard_.fill(own);
  }
  writes_weights_ = module != nullptr;
  if (!writes_main_) return;
  shared_ = entries_of(parts, CheckpointScope::shared);
  check_can_fill(shared_);
  // As PyTorch's own files say, and some of their readers want.
  if (writes_weights_) weights_.fill(weights_of(*module), {{"format", "pt"}});
}

CheckpointWriter::Header CheckpointWriter::exchange(const std::string& problem,
                                                    std::span<const CheckpointPart> parts) {
  const std::string failure = task_.wait();
  const std::int64_t failed_step = step_;
  const std::string written = std::exchange(pending_, "");
  nlohmann::json own = {{"failure", failure}, {"problem", problem}, {"parts", names_of(parts)}};
  if (context_.rank() == 0) {
    own["save"] = random_save_name();
    own["time"] = seconds_since_1970();
  }
  const auto reports = allgather_object(context_, own, {.name = "hora.checkpoint.save"});
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const auto text = [&](const char* key) { return reports[rank].at(key).get<std::string>(); };
    const std::string on_rank = " on rank " + std::to_string(rank) + ": ";
    if (!text("failure").empty()) {
      throw Error(ErrorCode::invalid_argument,
                  "Checkpoint: the save of step " + std::to_string(failed_step) + " has failed" +
                      on_rank + text("failure") +
                      ". The one before is still there; free space or repair the folder, and save "
                      "again",
                  static_cast<int>(rank));
    }
    if (!text("problem").empty()) {
      throw Error(ErrorCode::invalid_argument,
                  "Checkpoint: save() cannot copy what it is to save" + on_rank + text("problem"),
                  static_cast<int>(rank));
    }
    if (reports[rank].at("parts") != reports[0].at("parts")) {
      throw Error(ErrorCode::mismatch,
                  "Checkpoint: ranks have added different parts: rank 0 " +
                      reports[0].at("parts").dump() + ", rank " + std::to_string(rank) + " " +
                      reports[rank].at("parts").dump() +
                      "; add the same ones in the same order on every rank");
    }
  }
  if (!written.empty()) complete_ = written;
  return {reports[0].at("save").get<std::string>(), reports[0].at("time").get<std::int64_t>()};
}

void CheckpointWriter::fill_state(std::span<const CheckpointPart> parts) {
  std::vector<std::vector<std::byte>> gathered;
  if (has_gathered_) {
    gathered = allgather_object(context_, of_rank_.bytes(), {.name = "hora.checkpoint.ranks"});
  }
  if (!writes_main_) return;
  NamedTensors state = std::exchange(shared_, {});
  for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
    const auto contents = contents_of(std::make_shared<const Bytes>(std::move(gathered[rank])));
    if (!contents) {
      throw Error(ErrorCode::transport, "Checkpoint: what rank " + std::to_string(rank) +
                                            " has sent cannot be read: " + contents.error());
    }
    add_entries_of_rank(state, static_cast<int>(rank), contents->tensors);
  }
  state_.fill(state, {{kPartsKey, nlohmann::json(names_of(parts)).dump()}});
}

void CheckpointWriter::save(const CheckpointPosition& position, bool best,
                            std::span<const CheckpointPart> parts,
                            const torch::nn::Module* module) {
  // Images are written from until the save before is done. What it has failed of is exchanged.
  std::string problem;
  const std::string failure = task_.wait();
  if (!failure.empty()) {
    task_.start([failure] { throw Error(ErrorCode::invalid_argument, failure); });
  }
  try {
    collect(parts, module);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const Header header = exchange(problem, parts);
  fill_state(parts);
  Manifest manifest;
  manifest.save = header.save;
  manifest.step = position.step;
  manifest.epoch = position.epoch;
  manifest.time = header.time;
  manifest.ranks_of_nodes = ranks_of_nodes(context_);
  manifest.shards = has_shards_ ? context_.size() : 0;
  start(manifest, best);
  if (!options_.background) wait();
}

void CheckpointWriter::start(const Manifest& manifest, bool best) {
  pending_ = manifest.save;
  step_ = manifest.step;
  task_.start([this, manifest, best, complete = complete_] { write(manifest, best, complete); });
}

void CheckpointWriter::write(const Manifest& manifest, bool best, const std::string& complete) {
  if (has_shards_) {
    Manifest of_shard = manifest;
    of_shard.shard = context_.rank();
    const FileImage image{kStateFile, shard_.bytes()};
    shard_folder_.write(of_shard, {&image, 1}, best, complete);
  }
  if (!writes_main_) return;
  std::vector<FileImage> images;
  if (writes_weights_) images.push_back({kWeightsFile, weights_.bytes()});
  images.push_back({kStateFile, state_.bytes()});
  main_folder_.write(manifest, images, best, complete);
}

void CheckpointWriter::wait() {
  exchange("", {});
}

}  // namespace hora::internal
