/// Visibility of symbols in a shared library of hora.
#pragma once

/// Makes a namespace, class or function visible outside; all else is hidden.
#define HORA_EXPORT [[gnu::visibility("default")]]
/// Hides a class that is declared in an exported one.
#define HORA_HIDDEN [[gnu::visibility("hidden")]]
