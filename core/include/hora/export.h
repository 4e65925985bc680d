/// What a shared library of hora exports.
#pragma once

/// Before a namespace, class or function: visible outside of the library. All else is hidden.
#define HORA_EXPORT [[gnu::visibility("default")]]
/// Before a class that is declared in an exported one, and is of no use outside: hidden.
#define HORA_HIDDEN [[gnu::visibility("hidden")]]
