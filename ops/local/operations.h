/// What becomes of two vectors of elements, one struct a reduction; for the instruction set that
/// the including source is compiled for. All in an unnamed namespace (see kernel_table.h).
#pragma once

namespace hora {
namespace {

/// kPrescaled: inputs are multiplied by Scales::pre. The plain sum, which is used most, is not, and
/// has more code of its own; it is PrescaledSum that serves where pre is not 1.
struct Sum {
  static constexpr bool kPrescaled = false;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    return a + b;
  }
};

struct PrescaledSum : Sum {
  static constexpr bool kPrescaled = true;
};

struct Product {
  static constexpr bool kPrescaled = true;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    return a * b;
  }
};

/// True in the lanes with the sign bit: lanes of comparisons are signed integers as wide as the
/// elements.
template <class Mask, class Vector>
inline Mask negative(Vector vector) {
  return (Mask)vector < 0;
}

/// IEEE 754-2019's minimum: NaN where one is, and -0 below +0, so that the order of the inputs does
/// not matter. Among equals one is chosen, not made of both: where the CPU takes subnormals for
/// zero, they are equal to each other. On integers what concerns NaN and zero changes nothing.
struct Minimum {
  static constexpr bool kPrescaled = true;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    using Mask = decltype(a < b);
    return (b < a) | (b != b) | ((a == b) & negative<Mask>(b)) ? b : a;
  }
};

struct Maximum {
  static constexpr bool kPrescaled = true;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    using Mask = decltype(a < b);
    return (a < b) | (b != b) | ((a == b) & negative<Mask>(a)) ? b : a;
  }
};

/// Of elements that are 0 or 1 (see Boolean).
struct Or {
  static constexpr bool kPrescaled = false;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    return a | b;
  }
};

struct And {
  static constexpr bool kPrescaled = false;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    return a & b;
  }
};

}  // namespace
}  // namespace hora
