/// What a shared library of hora exports.
#pragma once

/// Before a namespace, class or function: visible outside of the library. All else is hidden.
#define HORA_EXPORT [[gnu::visibility("default")]]
