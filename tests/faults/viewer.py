# SPDX-License-Identifier: Apache-2.0
"""The viewer."""

from tests.faults.fault import Fault

FAULTS = [
    Fault(
        "full_pictures_are_not_given_up",
        "viewer/engine.py",
        "client.of_stage != MOVING and",
        "False and",
        "viewer_engine",
    ),
    Fault(
        "small_pictures_are_measured",
        "viewer/resolution.py",
        "trusted = is_full or n_rays >= TRUSTED_RAYS",
        "trusted = True",
        "viewer_engine",
    ),
    Fault(
        "chunks_grow_without_bound",
        "viewer/chunk.py",
        "return max(CHUNK_SECONDS, 2",
        "return max(1.0, 2",
        "viewer_engine",
    ),
    Fault("all_time_put_down_to_rays", "viewer/chunk.py", "min(max(fixed, 0.0), seconds)", "0.0", "viewer_engine"),
    Fault(
        "an_onlooker_takes_half", "viewer/sharing.py", "return self.credit >= seconds", "return True", "viewer_engine"
    ),
    Fault("what_browsers_leave_is_kept", "viewer/memory.py", "gc.collect()", "pass", "viewer_leaving"),
    Fault(
        "frozen_browsers_are_kept", "viewer/frozen.py", "return connection.transport.abort()", "pass", "viewer_leaving"
    ),
    Fault("slow_browsers_are_hung_up_on", "viewer/frozen.py", ">= unread", ">= 0", "viewer_leaving"),
    Fault("who_has_left_is_drawn_for", "viewer/session.py", "not in self.state.sessions", "is None", "viewer_leaving"),
    Fault("videos_mix_steps", "viewer/panels/video.py", "deepcopy(subject.model)", "subject.model", "viewer_video"),
    Fault("pictures_starve_videos", "viewer/training.py", "self.sharing.job_credit <= 0", "True", "viewer_video"),
    Fault("videos_of_nobody_go_on", "viewer/panels/__init__.py", "self.path.video.left(client)", "", "viewer_video"),
    Fault("foreign_names_are_answered", "viewer/guard.py", "found[1].lower() not in names", "False", "viewer_guard"),
    Fault(
        "foreign_pages_are_answered",
        "viewer/guard.py",
        "authority.lower() != hosts[0].lower()",
        "not authority",
        "viewer_guard",
    ),
    Fault(
        "a_crop_hides_what_is_behind",
        "model/cropping.py",
        "self.crop.inside(positions), values",
        "self.crop.inside(positions) | True, values",
        "crop",
    ),
    Fault("a_crop_counts_lengths_as_low", "crop.py", "& (positions <= high)", "& (positions <= high + 1)", "crop"),
    Fault(
        "a_path_in_degrees_of_the_width",
        "rendering/path_files.py",
        "focals.append(height / 2",
        "focals.append(width / 2",
        "camera_paths",
    ),
    Fault(
        "a_path_is_saved_in_the_models_frame",
        "viewer/path.py",
        "to_json(moved(cameras, frame, to_model=False)",
        "to_json(moved(cameras, None, to_model=False)",
        "camera_paths",
    ),
    Fault(
        "pictures_larger_than_the_limit",
        "viewer/session.py",
        "min(1.0, self.max_side / max(width, height))",
        "1.0",
        "viewer_pictures",
    ),
    Fault(
        "videos_of_what_the_crop_hides",
        "viewer/video.py",
        "width, height, look)",
        "width, height, Look(look.output))",
        "viewer_pictures",
    ),
    Fault(
        "videos_are_asked_for_without_the_crop",
        "viewer/panels/video.py",
        "crop=self.state.crop",
        "crop=None",
        "viewer_pictures",
    ),
    Fault(
        "the_nearest_view_may_look_elsewhere",
        "viewer/geometry.py",
        " + angle / 60)",
        ")",
        "viewer_pictures",
    ),
    Fault(
        "depths_of_nothing_stretch_the_colors",
        "viewer/picture.py",
        "seen = depth[opacity > FOREGROUND]",
        "seen = depth.flatten()",
        "viewer_pictures",
    ),
    Fault(
        "photographs_of_cameras_that_have_moved",
        "viewer/subject.py",
        " or not same_poses(views.cameras, given)",
        "",
        "viewer_pictures",
    ),
    Fault(
        "photographs_without_their_object",
        "viewer/subject.py",
        "~white if self.views.white_ignores else white",
        "white",
        "viewer_pictures",
    ),
]
