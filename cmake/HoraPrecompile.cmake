# LibTorch's headers take 10 s of a compiler's time in each source: they are precompiled, once for
# the library and once for all tests of it.
#
#   hora_precompile(target HEADERS...)   as target_precompile_headers
#   hora_precompile_as(target other)     what `other`, an earlier target of the same kind with the
#                                        same definitions, has precompiled

function(_hora_precompile target)
  target_precompile_headers(${target} ${ARGN})
  # For ccache (its manual, "Precompiled headers"), which also wants
  # CCACHE_SLOPPINESS=pch_defines,time_macros in the environment; without, it compiles every time.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endfunction()

function(hora_precompile target)
  list(TRANSFORM ARGN REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>" OUTPUT_VARIABLE headers)
  _hora_precompile(${target} PRIVATE ${headers})
endfunction()

function(hora_precompile_as target other)
  _hora_precompile(${target} REUSE_FROM ${other})
endfunction()
