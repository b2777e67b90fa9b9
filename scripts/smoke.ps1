# The smoke test of SPEC-1 D for Windows, as scripts/smoke.sh: written for it, not yet run there.
#
#   pwsh -File scripts/smoke.ps1          FARRO: another program; SMOKE_LOGS: where the logs go when something fails
$ErrorActionPreference = 'Stop'
Set-Location (Split-Path -Parent $PSScriptRoot)

$farro = if ($env:FARRO) { $env:FARRO } else { 'farro' }
$kept = if ($env:SMOKE_LOGS) { $env:SMOKE_LOGS } else { Join-Path (Get-Location) '.build/smoke' }
$root = Join-Path ([System.IO.Path]::GetTempPath()) ('farro-smoke-' + [guid]::NewGuid().ToString('N'))
$env:FARRO_ROOT = $root
$started = @()
$code = 1

function Step([string]$text) { Write-Output "smoke: $text" }
function Invoke-Farro { & $farro @args; if ($LASTEXITCODE -ne 0) { throw "farro $args ended with $LASTEXITCODE" } }
function Start-Farro([string]$name, [string[]]$words) {
  Start-Process -FilePath $farro -ArgumentList $words -PassThru -NoNewWindow `
    -RedirectStandardOutput (Join-Path $root "logs/$name.log") -RedirectStandardError (Join-Path $root "logs/$name.err.log")
}

try {
  Step 'a root, and a role that is answered from a file'
  New-Item -ItemType Directory -Path $root | Out-Null
  Invoke-Farro init | Out-Null
  Set-Content (Join-Path $root 'answers.json') '{"answers": [{"role": "SeniorEngineer", "answer": {"summary": "Nothing had to be changed."}}]}'
  Set-Content (Join-Path $root 'agents-config.json') '{"version": "1.0.0", "providers": {"file": {"kind": "scripted", "file": "answers.json"}}, "security": {"max_job_bytes": 26214400, "payload_allowlist": [".md", ".txt", ".json"]}}'
  Set-Content (Join-Path $root 'prompt.json') '{"role": "SeniorEngineer", "rubric": "See that it works.", "allowed_paths": ["src/"], "success": "It works.", "routing": {"mode": "manager"}}'
  New-Item -ItemType Directory -Path (Join-Path $root 'src') | Out-Null

  & $farro doctor --help *> $null
  if ($LASTEXITCODE -eq 0) {
    Step 'doctor'
    Invoke-Farro doctor | Out-Null
  }

  Step 'schemas'
  foreach ($name in 'prompt', 'agents-config') {
    if (!(Test-Path (Join-Path $root "schemas/$name.schema.json"))) { throw "no schemas/$name.schema.json" }
  }

  Step 'a manager and a worker'
  $started += Start-Farro 'manager' @('manager')
  $started += Start-Farro 'worker' @('worker', '--role', 'SeniorEngineer', '--workers', '1')

  Step 'one job'
  Invoke-Farro enqueue --prompt-json (Join-Path $root 'prompt.json') --id smoke | Out-Null
  Invoke-Farro wait smoke --timeout 5m | Out-Null
  if (!(Test-Path (Join-Path $root 'agents/Manager/completed/succeeded/smoke'))) { throw 'the job is not in completed/' }
  Invoke-Farro stats --alerts | Out-Null
  Step 'it completed'
  $code = 0
} catch {
  Write-Error "smoke: $_" -ErrorAction Continue
} finally {
  foreach ($process in $started) {
    if (!$process.HasExited) { Stop-Process -Id $process.Id -Force -ErrorAction SilentlyContinue }
  }
  if ($code -ne 0) {
    Remove-Item -Recurse -Force $kept -ErrorAction SilentlyContinue
    New-Item -ItemType Directory -Force -Path $kept | Out-Null
    Copy-Item -Recurse (Join-Path $root 'logs/*') $kept -ErrorAction SilentlyContinue
    Write-Output "smoke: failed; the logs are in $kept"
  }
  Remove-Item -Recurse -Force $root -ErrorAction SilentlyContinue
}
exit $code
