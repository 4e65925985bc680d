#include "examples/vision/data/pickle_numpy.h"

#include <array>

namespace vision {
namespace {

using Kind = PickleKind;

bool has_kinds(PickleObjectsView objects, std::initializer_list<Kind> kinds) {
  return std::equal(objects.begin(), objects.end(), kinds.begin(), kinds.end(),
                    [](const PickleObject* object, Kind kind) { return object->kind == kind; });
}

PickleObject array_of(const PickleObject& shape, const PickleObject& bytes, bool by_columns) {
  return {Kind::array, by_columns ? 1 : 0, bytes.text, shape.items};
}

}  // namespace

std::optional<PickleKind> numpy_name(std::string_view module, std::string_view name) {
  struct Known {
    std::string_view module;
    std::string_view name;
    Kind kind;
  };
  static constexpr std::array known{
      Known{"numpy", "ndarray", Kind::ndarray_class},
      Known{"numpy", "dtype", Kind::dtype_class},
      Known{"numpy.core.multiarray", "_reconstruct", Kind::reconstruct},
      Known{"numpy._core.multiarray", "_reconstruct", Kind::reconstruct},
      Known{"numpy.core.numeric", "_frombuffer", Kind::from_buffer},
      Known{"numpy._core.numeric", "_frombuffer", Kind::from_buffer},
  };
  for (const Known& entry : known) {
    if (entry.module == module && entry.name == name) {
      return entry.kind;
    }
  }
  return std::nullopt;
}

std::optional<PickleObject> call_numpy(PickleKind function, PickleObjectsView arguments) {
  switch (function) {
    case Kind::reconstruct:
      if (has_kinds(arguments, {Kind::ndarray_class, Kind::tuple, Kind::string})) {
        return PickleObject{Kind::array_without_state, 0, {}, {}};
      }
      break;
    case Kind::dtype_class:
      if (arguments.size() == 3 && arguments[0]->is("u1")) {
        return PickleObject{Kind::dtype, 0, {}, {}};
      }
      break;
    case Kind::from_buffer:
      if (has_kinds(arguments, {Kind::string, Kind::dtype, Kind::tuple, Kind::string}) &&
          (arguments[3]->is("C") || arguments[3]->is("F"))) {
        return array_of(*arguments[2], *arguments[0], arguments[3]->is("F"));
      }
      break;
    default:
      break;
  }
  return std::nullopt;
}

bool set_numpy_state(PickleObject& object, PickleObjectsView state) {
  if (object.kind == Kind::dtype) {
    return state.size() >= 2 && state[1]->is("|");
  }
  if (object.kind != Kind::array_without_state ||
      !has_kinds(state, {Kind::integer, Kind::tuple, Kind::dtype, Kind::boolean, Kind::string})) {
    return false;
  }
  object = array_of(*state[1], *state[4], state[3]->number != 0);
  return true;
}

}  // namespace vision
