/// What LibTorch's archives hold, as plain bytes: a peer's are never given to an archive's reader.
#pragma once

#include <torch/serialize/archive.h>

#include <optional>
#include <span>
#include <string>

#include "core/bounded_reader.h"

namespace hora {

/// Consumes `archive`. Throws as write_value.
std::string archive_bytes(torch::serialize::OutputArchive& archive, const std::string& name);

/// An archive, made here, of what archive_bytes gave; its tensors on `device`. Throws an Error of
/// this origin for anything else.
torch::serialize::InputArchive archive_of(std::span<const std::byte> bytes,
                                          const BytesOrigin& origin, const torch::Device& device);

}  // namespace hora
