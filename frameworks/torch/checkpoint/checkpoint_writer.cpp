#include "frameworks/torch/checkpoint/checkpoint_writer.h"

#include <hora/collectives.h>
#include <hora/error.h>
#include <hora/objects_json.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "core/base/diagnostics.h"

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

/// Describes a save: rank 0's on every rank, but for the latest time.
struct CheckpointWriter::Header {
  std::string save;
  std::int64_t time = 0;
  CheckpointPosition position;
  bool best = false;
};

CheckpointWriter::CheckpointWriter(const Context& context, const CheckpointOptions& options)
    : context_(context),
      options_(options),
      writes_main_(options.per_node ? context.local_rank() == 0 : context.rank() == 0),
      main_folder_(options.folder),
      shard_folder_(shard_folder(options.folder, context.rank())) {
  if (context.local_rank() != 0) return;
  for (const FoundCheckpoint& one : contents_of_folder(options.folder).found) {
    latest_ = std::max(latest_, one.manifest.time);
  }
}

CheckpointWriter::~CheckpointWriter() {
  finish();
  if (!failure_.empty()) {
    log_warning("Checkpoint: the save of step " + std::to_string(step_) +
                " has failed: " + failure_);
  }
}

void CheckpointWriter::finish() {
  if (const std::string failure = task_.wait(); !failure.empty()) failure_ = failure;
}

void CheckpointWriter::collect(std::span<const CheckpointPart> parts,
                               const torch::nn::Module* module) {
  for (const CheckpointPart& part : parts) part.prepare();
  has_shards_ = has_gathered_ = false;
  for (const CheckpointPart& part : parts) {
    const bool shard = part.scope == CheckpointScope::shard;
    has_shards_ = has_shards_ || (shard && !options_.per_node);
    has_gathered_ =
        has_gathered_ || part.scope == CheckpointScope::each_rank || (shard && options_.per_node);
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

CheckpointWriter::Header CheckpointWriter::exchange(Header own, const std::string& problem,
                                                    std::span<const CheckpointPart> parts) {
  finish();
  const std::int64_t step_before = step_;
  const std::string before = std::exchange(pending_, "");
  if (!before.empty()) {
    barrier(context_, {.name = "hora.checkpoint.written", .timeout = options_.timeout});
  }
  const nlohmann::json report = {{"failure", std::exchange(failure_, "")},
                                 {"problem", problem},
                                 {"parts", names_of(parts)},
                                 {"save", own.save},
                                 {"time", own.time},
                                 {"step", own.position.step},
                                 {"epoch", own.position.epoch},
                                 {"best", own.best}};
  const auto reports = allgather_object(context_, report, {.name = "hora.checkpoint.save"});
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const auto text = [&](const char* key) { return reports[rank].at(key).get<std::string>(); };
    const std::string on_rank = " on rank " + std::to_string(rank) + ": ";
    if (!text("failure").empty()) {
      throw Error(ErrorCode::invalid_argument,
                  "Checkpoint: the save of step " + std::to_string(step_before) + " has failed" +
                      on_rank + text("failure") +
                      "; free space or repair the folder, and save again" +
                      (complete_.empty() ? "" : ". The one before is still there"),
                  static_cast<int>(rank));
    }
    if (!text("problem").empty()) {
      throw Error(ErrorCode::invalid_argument,
                  "Checkpoint: save() cannot copy what it is to save" + on_rank + text("problem"),
                  static_cast<int>(rank));
    }
    if (reports[rank].at("parts") != reports[0].at("parts")) {
      throw Error(ErrorCode::mismatch, "Checkpoint: ranks have added different parts: rank 0 " +
                                           reports[0].at("parts").dump() + ", rank " +
                                           std::to_string(rank) + " " +
                                           reports[rank].at("parts").dump() +
                                           "; add the same ones in the same order on every rank");
    }
  }
  if (!before.empty()) complete_ = before;
  std::int64_t time = 0;
  for (const auto& one : reports) time = std::max(time, one.at("time").get<std::int64_t>());
  return {reports[0].at("save").get<std::string>(),
          time,
          {reports[0].at("step").get<std::int64_t>(), reports[0].at("epoch").get<std::int64_t>()},
          reports[0].at("best").get<bool>()};
}

void CheckpointWriter::fill_state(std::vector<Bytes> of_ranks,
                                  std::span<const CheckpointPart> parts) {
  NamedTensors state = std::exchange(shared_, NamedTensors());
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const auto contents = contents_of(std::make_shared<const Bytes>(std::move(of_ranks[rank])));
    if (!contents) {
      throw Error(ErrorCode::transport, "what rank " + std::to_string(rank) +
                                            " has sent cannot be read: " + contents.error());
    }
    add_entries_of_rank(state, static_cast<int>(rank), contents->tensors);
  }
  state_.fill(state, {{kPartsKey, nlohmann::json(names_of(parts)).dump()}});
}

void CheckpointWriter::save(const CheckpointPosition& position, bool best,
                            std::span<const CheckpointPart> parts,
                            const torch::nn::Module* module) {
  finish();
  std::string problem;
  try {
    collect(parts, module);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  Header header{random_save_name(), std::max(seconds_since_1970(), latest_ + 1), position, best};
  header = exchange(std::move(header), problem, parts);
  std::vector<Bytes> of_ranks;
  if (has_gathered_) {
    of_ranks = allgather_object(context_, of_rank_.bytes(), {.name = "hora.checkpoint.ranks"});
  }
  Manifest manifest;
  manifest.save = pending_ = header.save;
  manifest.step = step_ = header.position.step;
  manifest.epoch = header.position.epoch;
  manifest.time = latest_ = header.time;
  manifest.ranks_of_nodes = ranks_of_nodes(context_);
  manifest.shards = has_shards_ ? context_.size() : 0;
  try {
    if (writes_main_) fill_state(std::move(of_ranks), parts);
    task_.start([this, manifest, best = header.best, complete = complete_] {
      write(manifest, best, complete);
    });
  } catch (const std::exception& error) {
    failure_ = error.what();  // the other ranks learn of it in the next exchange
  }
  if (!options_.background) wait();
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
  exchange({}, "", {});
}

}  // namespace hora::internal
