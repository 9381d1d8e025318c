# SPDX-License-Identifier: Apache-2.0
# Looks for a C++20 compiler. Without one every part is left out (or fails, see hpn_leave_out).
include(CheckLanguage)

if(NOT CMAKE_CXX_COMPILER)
    unset(CMAKE_CXX_COMPILER CACHE)  # what an earlier configuration did not find may be there now
endif()
check_language(CXX)

set(HPN_COMPILER "")
set(HPN_NO_COMPILER "")
if(NOT CMAKE_CXX_COMPILER)
    if(DEFINED ENV{CXX})
        set(HPN_NO_COMPILER "CXX=$ENV{CXX} is not a working C++ compiler")
    else()
        set(HPN_NO_COMPILER "no working C++ compiler was found (c++, g++, clang++; CXX may name another)")
    endif()
    string(APPEND HPN_NO_COMPILER "; on Debian and Ubuntu: apt-get install g++")
else()
    enable_language(CXX)
    set(HPN_COMPILER "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
    if(NOT "cxx_std_20" IN_LIST CMAKE_CXX_COMPILE_FEATURES)
        set(HPN_NO_COMPILER "${HPN_COMPILER} does not know C++20; GCC 11 and Clang 14 do")
    elseif(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
        set(HPN_NO_COMPILER "shared memory is built on memfd, futex and pidfd, which ${CMAKE_SYSTEM_NAME} does not have")
    endif()
endif()

if(HPN_NO_COMPILER)
    foreach(part IN LISTS HPN_PARTS)
        hpn_leave_out("${part}" "${HPN_NO_COMPILER}")
    endforeach()
    return()
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# Without contraction a sum has the same bits whether or not the processor has fused multiply-add.
set(HPN_FLAGS -ffp-contract=off -Wall -Wextra)
if(HP_NATIVE_WERROR)
    list(APPEND HPN_FLAGS -Werror)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
        list(APPEND HPN_FLAGS -Wno-restrict)  # GCC 12 warns of std::string's operator+ (its bug 105651)
    endif()
endif()
set(HPN_LINK_FLAGS "")
if(HPN_SANITIZERS)
    list(JOIN HPN_SANITIZERS "," names)
    # -O1 keeps stacks readable and the build short; assertions are on.
    set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
    list(APPEND HPN_FLAGS "-fsanitize=${names}" -fno-sanitize-recover=all -fno-omit-frame-pointer)
    list(APPEND HPN_LINK_FLAGS "-fsanitize=${names}")
    if("thread" IN_LIST HPN_SANITIZERS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # GCC warns that ThreadSanitizer does not see what a fence orders. Ours order atomics only (who sleeps, who
        # rings), which it never reports.
        list(APPEND HPN_FLAGS -Wno-tsan)
    endif()
else()
    # The C++ runtime goes into the library: an environment may bring an older one than this compiler's, and the
    # first one loaded serves the whole process.
    list(APPEND HPN_LINK_FLAGS -static-libstdc++ -static-libgcc -Wl,--no-undefined)
endif()
string(JOIN " " HPN_ALL_FLAGS "${CMAKE_CXX_FLAGS}" "${CMAKE_CXX_FLAGS_RELEASE}" ${HPN_FLAGS} -fvisibility=hidden)
string(STRIP "${HPN_ALL_FLAGS}" HPN_ALL_FLAGS)
