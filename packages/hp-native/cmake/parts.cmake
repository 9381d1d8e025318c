# SPDX-License-Identifier: Apache-2.0
# One library a part. Strict: as targets of this build. Not strict: each in a build of its own, made right now, so that
# one that does not compile is left out and the rest goes on.

set(HPN_LIBRARY_symmetric_memory hp_native)
set(HPN_SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/native")

file(GLOB HPN_CORE CONFIGURE_DEPENDS "${HPN_SOURCES}/core/*.cpp")
hpn_flags_by_suffix(HPN_CORE)

# What hpn_build_info() says; only one file is compiled again when it changes.
list(JOIN HPN_ISA "," isa)
set_source_files_properties("${HPN_SOURCES}/core/version.cpp" PROPERTIES COMPILE_DEFINITIONS
    "HPN_BUILD_INFO=\"hp-native ${HPN_VERSION}, ${HPN_COMPILER}, ${HPN_ALL_FLAGS}, ${isa}\"")

function(hpn_add_symmetric_memory)
    add_library(hpn_core OBJECT ${HPN_CORE})
    target_include_directories(hpn_core PUBLIC "${HPN_SOURCES}/include" "${HPN_SOURCES}/core")
    target_compile_options(hpn_core PUBLIC ${HPN_FLAGS})
    target_link_libraries(hpn_core PUBLIC Threads::Threads)

    add_library(hp_native SHARED)
    target_link_libraries(hp_native PRIVATE hpn_core)
    set(exports "${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map")
    target_link_options(hp_native PRIVATE ${HPN_LINK_FLAGS} "-Wl,--version-script=${exports}")
    set_target_properties(hp_native PROPERTIES LINK_DEPENDS "${exports}")
    install(TARGETS hp_native LIBRARY DESTINATION . COMPONENT hp_native)
    # Found beside the build_info.json of an uninstalled build, too.
    set_target_properties(hp_native PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
endfunction()

function(hpn_add_tests)
    file(GLOB tests CONFIGURE_DEPENDS "${HPN_SOURCES}/tests/test_*.cpp" "${HPN_SOURCES}/tests/fuzz.cpp")
    foreach(file IN LISTS tests)
        get_filename_component(name "${file}" NAME_WE)
        add_executable(${name} "${file}")
        # The objects, not the library: tests see what the library does not export.
        target_link_libraries(${name} PRIVATE hpn_core)
        target_link_options(${name} PRIVATE ${HPN_LINK_FLAGS})
        add_test(NAME ${name} COMMAND ${name})
        set_tests_properties(${name} PROPERTIES TIMEOUT 600)  # only against a hang
    endforeach()
    # Benchmarks are built on demand: cmake --build … --target bench_NAME.
    file(GLOB benchmarks CONFIGURE_DEPENDS "${HPN_SOURCES}/tests/bench_*.cpp")
    foreach(file IN LISTS benchmarks)
        get_filename_component(name "${file}" NAME_WE)
        add_executable(${name} EXCLUDE_FROM_ALL "${file}")
        target_link_libraries(${name} PRIVATE hpn_core)
    endforeach()
endfunction()

# Builds `part` in a folder of its own; sets `reason` to "" or to what went wrong.
function(hpn_try_part part reason)
    set(folder "${CMAKE_CURRENT_BINARY_DIR}/parts/${part}")
    set(made 1)
    execute_process(
        COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_SOURCE_DIR}" -B "${folder}" -G "${CMAKE_GENERATOR}"
            "-DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
            "-DCMAKE_CXX_FLAGS=${CMAKE_CXX_FLAGS}" "-DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}"
            "-DHP_NATIVE_PARTS=${part}" -DHP_NATIVE_STRICT=ON
            "-DHP_NATIVE_WERROR=${HP_NATIVE_WERROR}" "-DHP_NATIVE_SANITIZE=${HP_NATIVE_SANITIZE}"
        RESULT_VARIABLE made OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(made EQUAL 0)
        # LC_ALL: the error is looked for below by its English name.
        execute_process(COMMAND "${CMAKE_COMMAND}" -E env LC_ALL=C "${CMAKE_COMMAND}" --build "${folder}"
            RESULT_VARIABLE made OUTPUT_VARIABLE said ERROR_VARIABLE said)
    endif()
    set(${reason} "" PARENT_SCOPE)
    if(NOT made EQUAL 0)
        message(STATUS "${said}")
        # The first error is the cause; those after it mostly follow from it.
        string(REPLACE ";" "," said "${said}")
        string(REGEX MATCH "[^\n]*error[^\n]*" first "${said}")
        string(REPLACE "${CMAKE_CURRENT_SOURCE_DIR}/" "" first "${first}")
        set(${reason} "it does not compile with ${HPN_COMPILER}: ${first}" PARENT_SCOPE)
    endif()
endfunction()

foreach(part IN LISTS HPN_PARTS)
    if(HP_NATIVE_STRICT)
        cmake_language(CALL hpn_add_${part})
    else()
        hpn_try_part("${part}" reason)
        if(reason)
            hpn_leave_out("${part}" "${reason}")
        else()
            install(FILES "${CMAKE_CURRENT_BINARY_DIR}/parts/${part}/lib${HPN_LIBRARY_${part}}.so" DESTINATION . COMPONENT hp_native)
        endif()
    endif()
endforeach()

if(HP_NATIVE_TESTS)
    if(NOT TARGET hpn_core)
        message(FATAL_ERROR "HP_NATIVE_TESTS needs HP_NATIVE_STRICT=ON and the part symmetric_memory")
    endif()
    enable_testing()  # here: in a function it is forgotten
    hpn_add_tests()
endif()
