@echo off
rem Starts kvchat on Windows: finds a Python, 3.11 or newer, and hands over to app.py.
setlocal
set "APP=%~dp0..\..\app.py"
for %%V in (3.13 3.12 3.11 3.14) do (
    py -%%V -c "" >nul 2>nul && (
        py -%%V "%APP%" %*
        goto end
    )
)
python -c "import sys; sys.exit(sys.version_info < (3, 11))" >nul 2>nul && (
    python "%APP%" %*
    goto end
)
echo kvchat needs Python 3.11 or newer. Get it from https://www.python.org/downloads/ and start this file again.
exit /b 1
:end
if errorlevel 1 pause
