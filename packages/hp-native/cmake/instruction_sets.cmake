# SPDX-License-Identifier: Apache-2.0
# A file's suffix says which instructions it may use; which of them runs is chosen at run time (native/core/reduce.h).

set(HPN_SUFFIXES "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(HPN_SUFFIXES avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(HPN_SUFFIXES neon)
endif()
# No -mfma, see -ffp-contract in compiler.cmake.
set(HPN_FLAGS_avx2 -mavx2 -mf16c)
set(HPN_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(HPN_FLAGS_neon "")

set(HPN_ISA generic)

# Drops the files of other processors from the list `out`, and gives the rest the flags of their suffix.
function(hpn_flags_by_suffix out)
    set(kept "")
    set(isa generic)
    foreach(file IN LISTS ${out})
        if(file MATCHES "_(avx2|avx512|neon)\\.cpp$")
            set(suffix "${CMAKE_MATCH_1}")
            if(NOT suffix IN_LIST HPN_SUFFIXES)
                continue()
            endif()
            set_source_files_properties("${file}" PROPERTIES COMPILE_OPTIONS "${HPN_FLAGS_${suffix}}")
            list(APPEND isa "${suffix}")
        endif()
        list(APPEND kept "${file}")
    endforeach()
    list(REMOVE_DUPLICATES isa)
    set(${out} "${kept}" PARENT_SCOPE)
    set(HPN_ISA "${isa}" PARENT_SCOPE)
endfunction()
