"""The style sheet of `farro top`. Colours come from the theme, so that light and dark both read well."""

CSS = """
#title { height: 1; background: $panel; color: $text; }
#tabs { height: 1; background: $surface; color: $text; }
#views { height: 1fr; }
#overview, #jobs, #workers, #swarms, #attention { height: 1fr; }
#lanes { height: 2; }
#apart { height: 1; }
#running { height: 1fr; }
#ended { height: 1fr; }
#about-jobs { height: 1; color: $text; }
#jobs-board, #workers-board, #swarms-board, #attention-board { height: 1fr; }
#advice { height: auto; max-height: 7; color: $text-muted; }
#filter { height: 3; border: tall $primary; }
#job-head { height: 1; background: $panel; color: $text; }
#job-parts { height: 1; background: $surface; }
#job-body { height: 1fr; }
#story, #result, #prompt { height: 1fr; scrollbar-size-vertical: 1; }
#story-text, #result-text, #prompt-text { width: 1fr; height: auto; }
#logs { height: 1fr; scrollbar-size: 0 1; background: $surface; }
#logs:focus { background-tint: $foreground 0%; }
Confirm, Keys, Notice { align: center middle; }
#dialog { width: 70; max-width: 90%; height: auto; background: $surface; border: round $primary; padding: 1 2; }
#question { width: 1fr; height: auto; margin-bottom: 1; }
#answers { height: auto; margin-top: 1; align-horizontal: right; }
#answers Button { margin-left: 2; }
#keys { width: 70; max-width: 94%; height: auto; max-height: 94%; background: $surface; }
#keys { border: round $primary; padding: 0 2; scrollbar-size-vertical: 1; }
"""
