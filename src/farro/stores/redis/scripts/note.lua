-- A line of the audit log that is no change of a job. ARGV: time, the line. Answers its number.
return tell(ARGV[2])
