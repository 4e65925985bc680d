/// The names of numpy that a pickled array of uint8 asks for, and what they make. Functions over
/// objects of the pickle: nothing is imported or run.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "examples/vision/data/pickle_machine.h"

namespace vision {

using PickleObjectsView = std::span<const PickleObject* const>;

/// What MODULE.NAME stands for; nothing where it is not known here. numpy 2 has moved core to
/// _core.
std::optional<PickleKind> numpy_name(std::string_view module, std::string_view name);

/// What calling `function` with `arguments` makes: _reconstruct an array without state, numpy.dtype
/// a dtype, _frombuffer an array. Nothing where that is no array of uint8.
std::optional<PickleObject> call_numpy(PickleKind function, PickleObjectsView arguments);

/// Gives an array or a dtype its state: (version, shape, dtype, whether by columns, bytes), or
/// (version, byte order, ...). False for another object, and for a state that no array of uint8
/// has.
bool set_numpy_state(PickleObject& object, PickleObjectsView state);

}  // namespace vision
