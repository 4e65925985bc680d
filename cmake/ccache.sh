# shellcheck shell=bash
# For scripts to source, in the root of the sources: with these variables ccache takes what another
# clone has compiled, wherever that lies.

export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
# What ccache needs for sources that have precompiled headers (HoraPrecompile.cmake).
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1
